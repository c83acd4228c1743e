#include "lib/comm/survivors.h"

#include "gtest/gtest.h"
