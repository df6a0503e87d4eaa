/* pulllib.h - opens tern-pull.so, which has libcurl, when somebody pulls. */
#ifndef TERN_CLI_PULLLIB_H
#define TERN_CLI_PULLLIB_H

#include "pull/pull.h"

/* The library's function. It is never closed. E_UNSUPPORTED: it is not there, and the message says
 * where it was looked for and how to get it. */
int pulllib_open(pull_run_fn **out, struct err *e);
#endif
