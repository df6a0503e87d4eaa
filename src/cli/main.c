/* main.c - the table of commands; the help is printed from it.
 *
 * A command is found by its name and gets the rest of the arguments. Messages go to stderr as one
 * line that begins with "tern:"; results go to stdout. $TERN_LOG sets the log level. */
#include "base/log.h"
#include "base/str.h"
#include "cli/cmd.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

struct entry {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
};

static const struct entry verbs[] = {
    { "serve", cmd_serve, "serve models over HTTP: the OpenAI API and a chat page" },
    { "run", cmd_run, "generate text for one prompt" },
    { "chat", cmd_chat, "chat with a model in the terminal" },
    { "inspect", cmd_inspect, "show the contents of a model file" },
    { "verify", cmd_verify, "check a model's files, down to every number in them" },
    { "tokenize", cmd_tokenize, "turn text into token ids, and back" },
    { "embed", cmd_embed, "turn texts into embedding vectors" },
    { "classify", cmd_classify, "classify texts with an ONNX classifier" },
    { "template", cmd_template, "render a chat template" },
    { "eval", cmd_eval, "measure perplexity, or agreement with reference logits" },
    { "bench", cmd_bench, "measure tokens/s, GB/s and share of the memory bandwidth" },
    { "load", cmd_load, "load-test a server: time to first token, gaps, throughput" },
    { "convert", cmd_convert, "convert a Hugging Face folder to GGUF, or back" },
    { "quantize", cmd_quantize, "write a model with quantized weights" },
    { "imatrix", cmd_imatrix, "compute an importance matrix for quantize" },
    { "worker", cmd_worker, NULL }, /* for tern serve --isolate; not in the help */
};

static void print_help(FILE *f)
{
    fprintf(f, "tern %s - run and serve language models\n\n", cmd_version());
    fputs("usage: tern COMMAND [flags]\n\n", f);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (verbs[i].help) fprintf(f, "  %-10s %s\n", verbs[i].name, verbs[i].help);
    fputs(
        "\nEach command has its own --help. tern --version prints the version.\n"
        "\nexamples:\n"
        "  tern run -p \"Tell me a story about a frog.\"     uses the model that ships with tern\n"
        "  tern run -m model.gguf -p \"Hello\" -n 64\n"
        "  tern chat -m hugging-face-folder/\n",
        f);
}

int cmd_fail(const struct err *e)
{
    fprintf(stderr, "tern: %s\n", e->msg);
    return EXIT_FAILED;
}

int cmd_usage(const char *verb, const struct err *e)
{
    fprintf(stderr, "tern %s: %s (see tern %s --help)\n", verb, e->msg, verb);
    return EXIT_USAGE;
}

int cmd_result(int rc, const struct err *e) { return rc == OK ? EXIT_OK : cmd_fail(e); }

static bool is_one_of(const char *word, const char *a, const char *b, const char *c)
{
    return str_is(str_c(word), a) || str_is(str_c(word), b) || str_is(str_c(word), c);
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    const char *level = getenv("TERN_LOG");

    signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of write(), not the end of the process */
    if (level && *level)
        log_set_level(*level == 'd' ? LOG_DEBUG : *level == 'i' ? LOG_INFO : LOG_WARN);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (str_is(str_c(verb), verbs[i].name)) return verbs[i].run(argc - 1, argv + 1);
    if (is_one_of(verb, "--version", "-V", "version")) {
        printf("tern %s\n", cmd_version());
        return EXIT_OK;
    }
    if (argc < 2 || is_one_of(verb, "--help", "-h", "help")) {
        print_help(stdout);
        return argc < 2 ? EXIT_USAGE : EXIT_OK;
    }
    fprintf(stderr, "tern: unknown command '%s' (tern --help lists the commands)\n", verb);
    return EXIT_USAGE;
}
