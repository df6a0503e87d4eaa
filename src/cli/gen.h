/* gen.h - what `run` and `chat` share: their flags, the open model, Ctrl-C, output, statistics. */
#ifndef TERN_CLI_GEN_H
#define TERN_CLI_GEN_H

#include "cli/args.h"
#include "tern.h"

#define GEN_MAX_STOPS 16

struct gen {
    /* flags; a number that was not given is NAN or INT_MIN, then the model's own setting stays */
    const char *model, *device, *system, *chat_template;
    const char *stops[GEN_MAX_STOPS + 1];
    const char *stop;
    int threads, gpu_layers, context, n, top_k, repeat_last;
    float temp, top_p, min_p, typical, repeat_penalty, freq_penalty, presence_penalty;
    uint64_t seed;
    const char *grammar, *schema; /* files */
    char *grammar_text, *schema_text;
    bool ignore_eos, verbose, quiet, vram_only;
    /* opened */
    tern_model *m;
    tern_model_info info;
    tern_params params;
};

#define GEN_SEED_NONE UINT64_MAX

/* What an answer must look like: rows for `run`. */
#define GEN_GRAMMAR_ARGS(g)                                                                        \
    {                                                                                              \
        "--grammar", NULL, ARG_STR, &(g)->grammar, "FILE", "the text must match this GBNF grammar" \
    },                                                                                             \
    {                                                                                              \
        "--json-schema", NULL, ARG_STR, &(g)->schema, "FILE",                                      \
            "the text must be JSON that keeps to this schema"                                      \
    }

/* The rows of a flag table that both verbs have. */
#define GEN_MODEL_ARGS(g)                                                                          \
    { "--model",   "-m",   ARG_STR,                                                                \
      &(g)->model, "PATH", "GGUF file or Hugging Face folder (default: the one that ships)" },     \
        { "--ctx",       "-c", ARG_INT,                                                            \
          &(g)->context, "N",  "context in tokens (default: the model's, at most 4096)" },         \
        { "--threads",   "-t", ARG_INT,                                                            \
          &(g)->threads, "N",  "threads (default: one for each physical core)" },                  \
        { "--device",   NULL,   ARG_STR,                                                           \
          &(g)->device, "NAME", "where to run: cpu, cuda, cuda:1 (default: cpu)" },                \
        { "--gpu-layers",                                                                          \
          "-ngl",                                                                                  \
          ARG_INT,                                                                                 \
          &(g)->gpu_layers,                                                                        \
          "N",                                                                                     \
          "a GPU: the last N layers lie there, the others on the CPU (default: as many as fit)" }, \
        { "--vram-only", NULL, ARG_FLAG, &(g)->vram_only, NULL, "a GPU: all layers, or fail" },    \
    {                                                                                              \
        "--chat-template", NULL, ARG_STR, &(g)->chat_template, "F",                                \
            "file with a Jinja chat template (default: the model's own)"                           \
    }

#define GEN_SAMPLE_ARGS(g)                                                                              \
    {                                                                                                   \
        "--tokens", "-n", ARG_INT,                                                                      \
        &(g)->n,    "N",  "tokens at most (default: until the model ends, or the context is full)"      \
    },                                                                                                  \
        { "--temp",   NULL, ARG_FLOAT,                                                                  \
          &(g)->temp, "T",  "temperature from 0 (greedy) to 2 (default: 0.8, or the model's)" },        \
        { "--top-k", NULL, ARG_INT, &(g)->top_k, "K", "only the K likeliest; 0: all (default: 40)" },   \
        { "--top-p",   NULL, ARG_FLOAT,                                                                 \
          &(g)->top_p, "P",  "only the likeliest with mass P; 1: all (default: 0.95)" },                \
        { "--min-p",   NULL, ARG_FLOAT,                                                                 \
          &(g)->min_p, "P",  "only those with P times the best one's chance; 0: all (default: 0.05)" }, \
        { "--typical",   NULL, ARG_FLOAT,                                                               \
          &(g)->typical, "P",  "only as surprising as expected, mass P; 1: off (default: 1)" },         \
        { "--repeat-penalty",   NULL, ARG_FLOAT,                                                        \
          &(g)->repeat_penalty, "X",  "divides the logits of recent tokens; 1: off (default: 1)" },     \
        { "--repeat-last",   NULL, ARG_INT,                                                             \
          &(g)->repeat_last, "N",  "tokens --repeat-penalty looks back on; -1: all (default: 64)" },    \
        { "--freq-penalty",   NULL, ARG_FLOAT,                                                          \
          &(g)->freq_penalty, "X",  "taken off for each time a token came, -2 to 2 (default: 0)" },     \
        { "--presence-penalty",   NULL, ARG_FLOAT,                                                      \
          &(g)->presence_penalty, "X",  "taken off once if a token came, -2 to 2 (default: 0)" },       \
        { "--seed",   NULL, ARG_U64,                                                                    \
          &(g)->seed, "S",  "the same seed gives the same text (default: random, shown at the end)" },  \
        { "--stop",   NULL,   ARG_STR,                                                                  \
          &(g)->stop, "TEXT", "ends the answer where TEXT comes; may be given several times" },         \
    {                                                                                                   \
        "--ignore-eos", NULL, ARG_FLAG, &(g)->ignore_eos, NULL,                                         \
            "go on behind the model's end token"                                                        \
    }

void gen_init(struct gen *g);
/* Every --stop of the arguments, not just the last. */
void gen_take_stops(struct gen *g, int argc, char **argv);
/* Opens the model and settles its parameters; on failure says why and returns the exit code. */
int gen_open(struct gen *g, const char *verb);
void gen_close(struct gen *g);

/* The last failure of the ABI on stderr, as cmd_fail or cmd_usage say it; returns the exit code. */
int gen_fail(const char *verb, int code);

/* Ctrl-C cancels this request from now on; NULL: it ends the program. */
void gen_watch(tern_request *r);
void gen_stay(void);        /* Ctrl-C never ends the program from now on */
bool gen_interrupted(void); /* since the last gen_watch of a request */

/* To stdout, at once. false: nobody reads it any more (quietly), or it failed (said on stderr). */
bool gen_write(const char *text, size_t n);
bool gen_write_failed(void); /* not just a reader who left */

/* One line: tokens, times, rates. */
void gen_print_stats(FILE *f, const struct gen *g, const tern_stats *s);
#endif
