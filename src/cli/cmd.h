/* cmd.h - the commands of the program, and helpers that they share.
 *
 * A command takes its own arguments (argv[0] is its name) and returns the exit code, which is the
 * same for all commands. One line on stderr gives the reason of a failure. */
#ifndef TERN_CLI_CMD_H
#define TERN_CLI_CMD_H

#include "base/dtype.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,         /* wrong usage or configuration: nothing was done */
    EXIT_NO_CONNECTION = 3, /* no server answers */
    EXIT_INTERRUPTED = 130  /* Ctrl-C */
};

/* One command of the program; main.c has the table. */
struct cmd_entry {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help; /* one line; NULL: not for users */
};
extern const struct cmd_entry cmd_table[]; /* ends with name NULL */
#define MODELS_WORDS "list|load|unload|reload|verify"
#define CLUSTER_WORDS "status|drain|undrain|weights"
#define CONFIG_WORDS "show|check|defaults"
#define COMPLETION_WORDS "bash|zsh|fish"

int cmd_serve(int argc, char **argv);
int cmd_gateway(int argc, char **argv);
int cmd_cluster(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_pull(int argc, char **argv);
int cmd_list(int argc, char **argv);
int cmd_show(int argc, char **argv);
int cmd_rm(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_manifest(int argc, char **argv);
int cmd_encrypt(int argc, char **argv);
int cmd_decrypt(int argc, char **argv);
int cmd_rekey(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_embed(int argc, char **argv);
int cmd_classify(int argc, char **argv);
int cmd_rerank(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_batch(int argc, char **argv);
int cmd_load(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_template(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_imatrix(int argc, char **argv);
int cmd_worker(int argc, char **argv);
int cmd_member(int argc, char **argv);
/* Against a running server (remote.h). */
int cmd_models(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_ps(int argc, char **argv);
int cmd_infer(int argc, char **argv);
int cmd_cancel(int argc, char **argv);
int cmd_health(int argc, char **argv);
int cmd_live(int argc, char **argv);
int cmd_ready(int argc, char **argv);
int cmd_config(int argc, char **argv);
/* Written from the tables of flags (flagwalk.h). */
int cmd_completion(int argc, char **argv);
int cmd_manual(int argc, char **argv);

/* "tern: MESSAGE" on stderr; returns EXIT_FAILED. */
int cmd_fail(const struct err *e);
/* The same with a pointer to the command's help; returns EXIT_USAGE. */
int cmd_usage(const char *verb, const struct err *e);
/* E_INVALID for a word that is none of "a|b|c", with the most similar one. */
int cmd_unknown_word(const char *word, const char *words, struct err *e);
/* EXIT_OK for rc OK, else cmd_fail. */
int cmd_result(int rc, const struct err *e);

/* "0.1.0 (d73277e)": the version and the git commit it was built from, or "unknown". */
const char *cmd_version(void);

/* The KV cache type that --kv-type names; E_INVALID for any other. */
int cmd_kv_type(enum dtype *out, const char *name, struct err *e);

/* Routed experts on the CPU, of layers on the GPU (model/expertplace.h). */
struct cmd_experts {
    bool cpu_moe;
    int n_cpu_moe;
    const char *place;
};

/* Rows of a flag table (args.h). */
/* clang-format off */
#define CMD_EXPERTS_ARGS(x)                                                                        \
    { "--cpu-moe", "-cmoe", ARG_FLAG, &(x)->cpu_moe, NULL,                                         \
      "GPU: routed experts of all layers on the CPU, the rest on the GPU" },                       \
    { "--n-cpu-moe", "-ncmoe", ARG_INT, &(x)->n_cpu_moe, "N",                                      \
      "GPU: routed experts of the first N layers on the CPU (0)" },                                \
    { "--place", "-ot", ARG_STR, &(x)->place, "P=D",                                               \
      "GPU: experts by tensor name: PATTERN=cpu,PATTERN=gpu; the first match decides" }
/* clang-format on */

/* Where a model computes, as flags say it. */
struct cmd_device {
    const char *device, *isa, *numa;
    int gpu_layers; /* CMD_GPU_LAYERS_FIT: as many as fit; 0: none, the CPU */
    bool vram_only;
    struct cmd_experts experts;
};
#define CMD_GPU_LAYERS_FIT (-1)
/* Refuses what this machine does not have (E_INVALID), and replaces device and gpu_layers by what
 * an engine takes. */
int cmd_check_device(struct cmd_device *d, struct err *e);

/* "500M", "2G", "1048576" as bytes, with decimal units; false: not a size. */
bool cmd_size(const char *s, uint64_t *out);

/* The model that ships with tern: $TERN_MODEL, models/tern-tales.gguf beside the build folder, or
 * the installed one; NULL: none of them exists. Static memory. */
const char *cmd_default_model(void);
/* Sets *model to the default where none was named; E_INVALID where there is none either. */
int cmd_need_model(const char **model, struct err *e);

/* Replaces an alias of the settings file by the path or hf: name that it stands for; other names stay.
 * For commands that need the name and not a path. */
int cmd_alias(const char **name, struct err *e);
/* Turns the user's name of a model into a path: an alias of the settings file ($TERN_CONFIG, or
 * tern.yaml in ~/.config/tern) becomes its path; hf: and file: names and names of the cache are
 * resolved; a path stays. The result lives as long as the program. */
int cmd_model(const char **model, struct err *e);

/* Kind of the first argument of `tern run`: a model or a prompt. */
enum cmd_word {
    WORD_MODEL,  /* a path that exists, an hf: or file: name, an alias, or a name of the cache */
    WORD_PROMPT, /* it cannot be the name of a model */
    WORD_UNKNOWN /* it could be one, and none of this name is here; the error tells both ways */
};
enum cmd_word cmd_word_kind(const char *word, struct err *e);
#endif
