/* The first program of a user: it prints the version and makes a world of one. */
#include <entrain/entrain.h>
#include <stdio.h>

int main(void) {
  entrain_comm_t* comm = NULL;
  if (entrain_comm_create_from_env(NULL, &comm) != ENTRAIN_OK) {
    fprintf(stderr, "%s\n", entrain_last_error());
    return 1;
  }
  entrain_comm_destroy(comm);
  printf("entrain %d\n", (int)entrain_version());
  return 0;
}
