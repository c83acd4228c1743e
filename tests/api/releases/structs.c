/* Compiled against the headers of a release: an init function of today's library writes the whole of a struct as the
 * program knows it, and no byte around it. structs.h has a line STRUCT(name) for each struct of the release. */
#include <entrain/entrain.h>
#include <entrain/optim.h>
#include <stdio.h>
#include <string.h>

enum { MARGIN = 4096, MARK = 0xA5 };

static int failures;

static void check(const char* what, int holds, const char* name) {
  if (!holds) {
    printf("entrain_%s_t: %s\n", name, what);
    failures++;
  }
}

static int untouched(const unsigned char* bytes) {
  size_t i;
  for (i = 0; i < MARGIN; i++) {
    if (bytes[i] != MARK) {
      return 0;
    }
  }
  return 1;
}

#define STRUCT(name)                                                                                \
  static void check_##name(void) {                                                                  \
    static struct {                                                                                 \
      unsigned char before[MARGIN];                                                                 \
      entrain_##name##_t value;                                                                     \
      unsigned char behind[MARGIN];                                                                 \
    } room, again;                                                                                  \
    memset(&room, MARK, sizeof(room));                                                              \
    memset(&again, 0, sizeof(again));                                                               \
    entrain_##name##_init(&room.value);                                                             \
    entrain_##name##_init(&again.value);                                                            \
    check("its size is not the release's", room.value.size == sizeof(room.value), #name);           \
    check("bytes before it were written", untouched(room.before), #name);                           \
    check("bytes behind it were written", untouched(room.behind), #name);                           \
    check("bytes in it were not written", memcmp(&room.value, &again.value, sizeof(room.value)) == 0, \
          #name);                                                                                   \
  }
#include "structs.h"
#undef STRUCT

int main(void) {
#define STRUCT(name) check_##name();
#include "structs.h"
#undef STRUCT
  return failures != 0;
}
