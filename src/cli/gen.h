/* gen.h - what `run` and `chat` share: flags, the open model, Ctrl-C, output, statistics.
 *
 * These commands use the model through include/tern.h only, as any other program would. */
#ifndef TERN_CLI_GEN_H
#define TERN_CLI_GEN_H

#include "cli/args.h"
#include "cli/cmd.h"
#include "cli/guard.h"
#include "tern.h"

#define GEN_MAX_STOPS 16

struct gen {
    /* Flags. A number that was not given is NAN or INT_MIN: the model's own setting stays. */
    const char *model, *device, *isa, *numa, *system, *chat_template;
    const char *stops[GEN_MAX_STOPS + 1]; /* NULL-terminated */
    const char *stop;                     /* the last --stop; gen_collect_stops finds all */
    int threads, gpu_layers, context, n, top_k, repeat_last;
    float temp, top_p, min_p, typical, repeat_penalty, freq_penalty, presence_penalty;
    uint64_t seed;                    /* GEN_SEED_NONE: not given */
    const char *grammar, *schema;     /* files */
    char *grammar_text, *schema_text; /* their contents, owned */
    bool ignore_eos, verbose, quiet, vram_only, allow_nan;
    struct cmd_experts experts;
    struct guard guard;
    /* Filled by gen_open. */
    const char *shown; /* the model's name for people: as it was given, or that of its file */
    tern_model *m;
    tern_model_info info;
    tern_params params;
};

#define GEN_SEED_NONE UINT64_MAX

/* Rows of a flag table (args.h). */
/* clang-format off */
#define GEN_GRAMMAR_ARGS(g)                                                                        \
    { "--grammar", NULL, ARG_STR, &(g)->grammar, "FILE", "output must match this GBNF grammar" }, \
    { "--json-schema", NULL, ARG_STR, &(g)->schema, "FILE", "output must be JSON of this schema" }

#define GEN_MODEL_ARGS(g)                                                                          \
    { "--model", "-m", ARG_STR, &(g)->model, "PATH",                                               \
      "GGUF file or Hugging Face folder (the model that ships with tern)" },                       \
    { "--ctx", "-c", ARG_INT, &(g)->context, "N",                                                  \
      "context length in tokens (as trained, as far as memory allows)" },                          \
    { "--threads", "-t", ARG_INT, &(g)->threads, "N", "threads (physical cores)" },                \
    { "--device", NULL, ARG_STR, &(g)->device, "NAME", "device: cpu, cuda, cuda:1 (cpu)" },        \
    { "--isa", NULL, ARG_STR, &(g)->isa, "NAME",                                                   \
      "CPU kernels: ref, avx2, avxvnni, avx512, amx, neon (the best of this machine)" },                    \
    { "--numa", NULL, ARG_STR, &(g)->numa, "MODE",                                                  \
      "memory nodes of the CPU: auto, off, spread, or the number of one (auto)" },                 \
    { "--gpu-layers", "-ngl", ARG_INT, &(g)->gpu_layers, "N",                                      \
      "GPU: run the last N layers there, 0: none; -1: as many as fit (-1)" },                       \
    { "--vram-only", NULL, ARG_FLAG, &(g)->vram_only, NULL,                                        \
      "GPU: fail unless all layers fit" },                                                         \
    CMD_EXPERTS_ARGS(&(g)->experts),                                                               \
    { "--allow-nan", NULL, ARG_FLAG, &(g)->allow_nan, NULL,                                        \
      "use a model whose weights contain NaN or infinity" },                                       \
    GUARD_ARGS(&(g)->guard),                                                                       \
    { "--chat-template", NULL, ARG_STR, &(g)->chat_template, "F",                                  \
      "file with a Jinja chat template (the model's)" }

#define GEN_SAMPLE_ARGS(g)                                                                         \
    { "--tokens", "-n", ARG_INT, &(g)->n, "N",                                                     \
      "at most N tokens (until the model stops or the context is full)" },                         \
    { "--temp", NULL, ARG_FLOAT, &(g)->temp, "T",                                                  \
      "temperature, 0 (greedy) to 2 (0.8, or the model's)" },                                      \
    { "--top-k", NULL, ARG_INT, &(g)->top_k, "K",                                                  \
      "sample from the K most likely tokens; 0: all (40)" },                                       \
    { "--top-p", NULL, ARG_FLOAT, &(g)->top_p, "P",                                                \
      "from the most likely tokens with total probability P; 1: all (0.95)" },                     \
    { "--min-p", NULL, ARG_FLOAT, &(g)->min_p, "P",                                                \
      "from tokens with at least P times the best one's probability; 0: all (0.05)" },             \
    { "--typical", NULL, ARG_FLOAT, &(g)->typical, "P",                                            \
      "locally typical sampling with total probability P; 1: off (1)" },                           \
    { "--repeat-penalty", NULL, ARG_FLOAT, &(g)->repeat_penalty, "X",                              \
      "divide the logits of recent tokens by X; 1: off (1)" },                                     \
    { "--repeat-last", NULL, ARG_INT, &(g)->repeat_last, "N",                                      \
      "tokens that --repeat-penalty applies to; -1: all (64)" },                                   \
    { "--freq-penalty", NULL, ARG_FLOAT, &(g)->freq_penalty, "X",                                  \
      "subtract X for each occurrence of a token, -2 to 2 (0)" },                                  \
    { "--presence-penalty", NULL, ARG_FLOAT, &(g)->presence_penalty, "X",                          \
      "subtract X once if a token occurred, -2 to 2 (0)" },                                        \
    { "--seed", NULL, ARG_U64, &(g)->seed, "S",                                                    \
      "random seed: the same seed gives the same text (random)" },                                 \
    { "--stop", NULL, ARG_STR, &(g)->stop, "TEXT",                                                 \
      "stop before TEXT; repeatable" },                                                            \
    { "--ignore-eos", NULL, ARG_FLAG, &(g)->ignore_eos, NULL,                                      \
      "continue after the model's end token" }
/* clang-format on */

void gen_init(struct gen *g);
/* Finds every --stop in the arguments; the flag table keeps the last one only. */
void gen_collect_stops(struct gen *g, int argc, char **argv);
/* Opens the model and fills the parameters. On failure prints the reason and returns the exit code. */
int gen_open(struct gen *g, const char *verb);
void gen_close(struct gen *g);

/* Prints the last failure of a tern_ call, as cmd_fail or cmd_usage do; returns the exit code. */
int gen_fail(const char *verb, int code);

/* From now on Ctrl-C cancels this request, and a second Ctrl-C ends the program. NULL: the first
 * one does. */
void gen_watch(tern_request *r);
void gen_ignore_interrupt(void); /* from now on Ctrl-C never ends the program */
bool gen_interrupted(void);      /* since the last gen_watch of a request */

/* Writes to stdout at once. false: the reader has closed the pipe (silently), or the write failed
 * (printed on stderr; gen_write_failed). */
bool gen_write(const char *text, size_t n);
bool gen_write_failed(void);

/* One line: tokens, times, rates. */
void gen_print_stats(FILE *f, const struct gen *g, const tern_stats *s);
#endif
