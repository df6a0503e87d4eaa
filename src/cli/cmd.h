/* cmd.h - the verbs of the program. Each takes its own arguments (argv[0] is the verb) and returns
 * the exit code: 0 done, 1 it failed (one line on stderr says why), 2 wrong usage. */
#ifndef TERN_CLI_CMD_H
#define TERN_CLI_CMD_H

#include "base/dtype.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

int cmd_serve(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_embed(int argc, char **argv);
int cmd_classify(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_load(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_template(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_imatrix(int argc, char **argv);

/* "tern: sentence" on stderr; returns EXIT_FAILED, or EXIT_USAGE for E_INVALID arguments. */
int cmd_fail(const struct err *e);
int cmd_usage(const char *verb, const struct err *e);

/* The type of keys and values that --kv-type names; E_INVALID: none of those there are. */
int cmd_kv_type(enum dtype *out, const char *name, struct err *e);

/* The model that ships: $TERN_MODEL, models/tern-tales.gguf beside the program's build folder, or
 * the installed one; NULL if none of them is there. Static memory. */
const char *cmd_default_model(void);

/* "500M", "2G", "1048576" as bytes (of 1000); false: none of that kind. */
bool cmd_size(const char *s, uint64_t *out);

/* What a person named with -m or as an argument: an alias of the settings file ($TERN_CONFIG, or
 * tern.yaml in ~/.config/tern) becomes the path it stands for; hf: and file: names become paths; a
 * path stays. The result lives as long as the program. */
int cmd_model(const char **model, struct err *e);
#endif
