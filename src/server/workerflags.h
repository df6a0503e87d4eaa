/* workerflags.h - the settings of a server as flags of its worker processes, and back.
 *
 * A worker gets all settings that models, engines and the API have, whatever their source was; none
 * about addresses, keys, and other models. */
#ifndef TERN_SERVER_WORKERFLAGS_H
#define TERN_SERVER_WORKERFLAGS_H

#include "base/arena.h"
#include "server/settings.h"

struct api_opt;
struct engine_opt;
struct model_opt;
struct pool_park_opt;

/* "--ctx=4096", ...: *n of them, in the arena. NULL: no memory. */
const char **workerflags_make(const struct settings *s, struct arena *a, int *n);

/* The same for what one model's settings say: up to max flags. Returns how many. */
int workerflags_of_model(const struct model_opt *o, struct arena *a, const char **out, int max);

/* Options as the settings say. --gpu-layers 0 means the CPU. */
void workerflags_engine(const struct settings *s, struct engine_opt *o);
/* How KV blocks are parked; the strings are borrowed. */
void workerflags_park(const struct settings *s, struct pool_park_opt *o);
void workerflags_api(const struct settings *s, struct api_opt *o);
#endif
