/* descriptors.h - open files: the limit of the process, and how many connections it allows. */
#ifndef TERN_SERVER_DESCRIPTORS_H
#define TERN_SERVER_DESCRIPTORS_H

#include "base/err.h"

/* Raises the limit of open files (RLIMIT_NOFILE) to its hard limit, and sets *fits to the number of
 * connections, at most `wanted`, for which it has room beside the files of so many models. Logs it
 * where that is fewer. E_INVALID: there is room for none. */
int descriptors_fit(int wanted, int n_models, int *fits, struct err *e);
#endif
