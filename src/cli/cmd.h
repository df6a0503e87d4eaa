/* cmd.h - the commands of the program, and helpers that they share.
 *
 * A command takes its own arguments (argv[0] is its name) and returns the exit code: 0 success, 1
 * failure (one line on stderr gives the reason), 2 wrong usage. */
#ifndef TERN_CLI_CMD_H
#define TERN_CLI_CMD_H

#include "base/dtype.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

int cmd_serve(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_verify(int argc, char **argv);
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
int cmd_worker(int argc, char **argv);

/* "tern: MESSAGE" on stderr; returns EXIT_FAILED. */
int cmd_fail(const struct err *e);
/* The same with a pointer to the command's help; returns EXIT_USAGE. */
int cmd_usage(const char *verb, const struct err *e);
/* EXIT_OK for rc OK, else cmd_fail. */
int cmd_result(int rc, const struct err *e);

/* "0.1.0 (d73277e)": the version and the git commit it was built from, or "unknown". */
const char *cmd_version(void);

/* The KV cache type that --kv-type names; E_INVALID for any other. */
int cmd_kv_type(enum dtype *out, const char *name, struct err *e);

/* "500M", "2G", "1048576" as bytes, with decimal units; false: not a size. */
bool cmd_size(const char *s, uint64_t *out);

/* The model that ships with tern: $TERN_MODEL, models/tern-tales.gguf beside the build folder, or
 * the installed one; NULL: none of them exists. Static memory. */
const char *cmd_default_model(void);
/* Sets *model to the default where none was named; E_INVALID where there is none either. */
int cmd_need_model(const char **model, struct err *e);

/* Turns the user's name of a model into a path: an alias of the settings file ($TERN_CONFIG, or
 * tern.yaml in ~/.config/tern) becomes its path, hf: and file: names are resolved, a path stays.
 * The result lives as long as the program. */
int cmd_model(const char **model, struct err *e);
#endif
