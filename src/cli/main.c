/* main.c - the table of verbs; help is printed from it. */
#include "base/file.h"
#include "base/log.h"
#include "cli/cmd.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct entry {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
};

static const struct entry verbs[] = {
    { "serve", cmd_serve, "models over HTTP, with OpenAI's API and a chat page" },
    { "run", cmd_run, "a prompt, streamed to stdout as text" },
    { "chat", cmd_chat, "a talk in the terminal" },
    { "inspect", cmd_inspect, "what a model file holds" },
    { "tokenize", cmd_tokenize, "text to ids and back" },
    { "embed", cmd_embed, "texts to vectors" },
    { "classify", cmd_classify, "texts to classes" },
    { "template", cmd_template, "what a chat template makes of messages" },
    { "eval", cmd_eval, "agreement with golden logits; perplexity" },
    { "bench", cmd_bench, "tokens/s, GB/s, share of the machine's bandwidth" },
    { "load", cmd_load, "clients against a server: first token, gaps, throughput" },
    { "convert", cmd_convert, "a Hugging Face folder to GGUF, and back" },
    { "quantize", cmd_quantize, "weights in fewer bits" },
    { "imatrix", cmd_imatrix, "which weights matter, by a text: for quantize" },
};

static void help(FILE *f)
{
    fprintf(f,
            "tern %s - run language models\n\nusage: tern VERB [flags]     (tern VERB --help "
            "teaches it)\n\n",
            TERN_VERSION);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        fprintf(f, "  %-10s %s\n", verbs[i].name, verbs[i].help);
    fprintf(f, "\nfirst steps:\n"
               "  tern run -p \"Tell me a story about a frog.\"     with the model that ships\n"
               "  tern run -m model.gguf -p \"Hello\" -n 64\n"
               "  tern chat -m folder-from-hugging-face/\n");
}

int cmd_fail(const struct err *e)
{
    fprintf(stderr, "tern: %s\n", e->msg);
    return EXIT_FAILED;
}

int cmd_usage(const char *verb, const struct err *e)
{
    fprintf(stderr, "tern %s: %s (tern %s --help teaches it)\n", verb, e->msg, verb);
    return EXIT_USAGE;
}

int cmd_kv_type(enum dtype *out, const char *name, struct err *e)
{
    static const enum dtype known[] = { DT_F16, DT_BF16, DT_Q8_0, DT_F8_E4M3, DT_F32 };
    enum dtype t = dtype_by_name(str_c(name));

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i] == t) return *out = t, OK;
    return err_set(e, E_INVALID, "--kv-type takes f16, bf16, q8_0, f8 or f32, found '%s'", name);
}

const char *cmd_default_model(void)
{
    static const char *const places[] = { "models/tern-tales.gguf", "../models/tern-tales.gguf",
                                          "../../models/tern-tales.gguf",
                                          "../share/tern/models/tern-tales.gguf" };
    static char path[4096];
    const char *named = getenv("TERN_MODEL");
    char exe[3500];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

    if (named && *named) return named;
    if (n <= 0) return NULL;
    exe[n] = 0;
    exe[path_base(exe) - exe] = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s%s", exe, places[i]);
        if (file_exists(path)) return path;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    const char *level = getenv("TERN_LOG");

    signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of write */
    if (level && *level)
        log_set_level(*level == 'd' ? LOG_DEBUG : *level == 'i' ? LOG_INFO : LOG_WARN);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (str_is(str_c(verb), verbs[i].name)) return verbs[i].run(argc - 1, argv + 1);
    if (str_is(str_c(verb), "--version") || str_is(str_c(verb), "version")) {
        printf("tern %s\n", TERN_VERSION);
        return EXIT_OK;
    }
    if (argc < 2 || str_is(str_c(verb), "--help") || str_is(str_c(verb), "-h") ||
        str_is(str_c(verb), "help")) {
        help(stdout);
        return argc < 2 ? EXIT_USAGE : EXIT_OK;
    }
    fprintf(stderr, "tern: no verb '%s' (tern --help lists them)\n", verb);
    return EXIT_USAGE;
}
