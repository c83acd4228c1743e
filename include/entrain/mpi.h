/* Creates a communicator of Entrain from a communicator of MPI. The ranks use MPI only to find each other. All data of
 * Entrain travel on Entrain's transports.
 *
 * MPI implementations differ in their binary interface, so the library does not link MPI. The function is defined in
 * this header instead, and your program compiles it with its own MPI (mpicc). entrain.h does not include this
 * header. */
#ifndef ENTRAIN_MPI_H_
#define ENTRAIN_MPI_H_

#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "entrain/comm.h"
#include "entrain/store.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ENTRAIN_MPI_URL_BYTES_ = 512 };

/* Writes to *one whether all ranks of `mpi` share the memory of one host. Collective over `mpi`. Returns an MPI error
 * code. */
static inline int entrain_mpi_one_host_(MPI_Comm mpi, int size, int* one) {
  MPI_Comm host;
  int here = 0, error = MPI_Comm_split_type(mpi, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  if (error == MPI_SUCCESS) {
    error = MPI_Comm_size(host, &here);
    MPI_Comm_free(&host);
  }
  if (error == MPI_SUCCESS) {
    here = here == size;
    error = MPI_Allreduce(&here, one, 1, MPI_INT, MPI_MIN, mpi);
  }
  return error;
}

/* Creates a communicator of the ranks of `mpi`, with the same rank numbers. `mpi` is an intracommunicator. Collective
 * over `mpi`; blocks. Call it between MPI_Init and MPI_Finalize, on a thread that may call MPI. The new communicator
 * does not use MPI afterwards, and may outlive it. The caller destroys it.
 *
 * During the call rank 0 serves a store. The kernel chooses the port. If all ranks are on one host, the address is the
 * loopback address. Otherwise the address is the processor name of rank 0 (MPI_Get_processor_name). The other ranks
 * must be able to resolve this name and to reach the address.
 *
 * config: as for entrain_comm_create. The fields rank, world_size and store are ignored. NULL: the defaults. The
 * deadline of entrain_comm_create applies. It does not bound the MPI calls that this function makes.
 *
 * Returns the result of entrain_comm_create; entrain_last_error() then has the text. There are three other errors. If a
 * rank cannot open the store of rank 0 (within timeout_ns; 0: 30 s), it returns that error, and the other ranks get
 * TIMED_OUT at their deadline. If rank 0 cannot serve a store, all ranks return the error of rank 0. In this case only
 * rank 0 has the text in entrain_last_error(). If an MPI call fails, and MPI returns the error instead of ending the
 * program, the result is ENTRAIN_PEER_LOST without a text. Without a text of this call, entrain_last_error() has the
 * text of an earlier failure. */
static inline entrain_status_t entrain_comm_create_from_mpi(MPI_Comm mpi, const entrain_comm_config_t* config,
                                                            entrain_comm_t** comm) {
  entrain_comm_config_t own;
  entrain_store_t* store = NULL;
  entrain_status_t status = ENTRAIN_OK;
  struct {
    int status;
    char url[ENTRAIN_MPI_URL_BYTES_];
  } found;
  int rank = 0, size = 0, one_host = 0;

  if (MPI_Comm_rank(mpi, &rank) != MPI_SUCCESS || MPI_Comm_size(mpi, &size) != MPI_SUCCESS ||
      entrain_mpi_one_host_(mpi, size, &one_host) != MPI_SUCCESS) {
    return ENTRAIN_PEER_LOST;
  }
  memset(&found, 0, sizeof(found));
  if (rank == 0) {
    char host[MPI_MAX_PROCESSOR_NAME + 1] = "127.0.0.1", url[MPI_MAX_PROCESSOR_NAME + 16];
    int length = 0;
    if (!one_host && MPI_Get_processor_name(host, &length) != MPI_SUCCESS) {
      found.status = ENTRAIN_PEER_LOST;
    } else {
      snprintf(url, sizeof(url), "tcp://%s:0", host);
      found.status = entrain_store_serve(url, &store);
    }
    if (found.status == ENTRAIN_OK) {
      snprintf(found.url, sizeof(found.url), "%s", entrain_store_url(store));
    }
  }
  if (MPI_Bcast(&found, (int)sizeof(found), MPI_BYTE, 0, mpi) != MPI_SUCCESS) {
    entrain_store_destroy(store);
    return ENTRAIN_PEER_LOST;
  }
  if (found.status != ENTRAIN_OK) {
    return (entrain_status_t)found.status;
  }
  if (config != NULL) {
    own = *config;
  } else {
    entrain_comm_config_init(&own);
  }
  status = store != NULL ? ENTRAIN_OK : entrain_store_open(found.url, own.timeout_ns, &store);
  if (status == ENTRAIN_OK) {
    own.store = store;
    own.rank = rank;
    own.world_size = size;
    status = entrain_comm_create(&own, comm);
  }
  entrain_store_destroy(store);
  return status;
}

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ENTRAIN_MPI_H_ */
