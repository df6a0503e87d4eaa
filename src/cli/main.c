/* main.c - the table of commands; the help is printed from it.
 *
 * A command is found by its name and gets the rest of the arguments. Messages go to stderr as one
 * line that begins with "tern:"; results go to stdout. $TERN_LOG sets the log level. */
#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/cmd.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

const struct cmd_entry cmd_table[] = {
    { "serve", cmd_serve, "serve models over HTTP: the OpenAI API and a chat page" },
    { "gateway", cmd_gateway, "serve the API in front of many workers (tern serve)" },
    { "cluster", cmd_cluster, "show, drain and weigh the workers of a running gateway" },
    { "run", cmd_run, "generate text for one prompt" },
    { "chat", cmd_chat, "chat with a model in the terminal" },
    { "pull", cmd_pull, "download a model of the Hugging Face Hub" },
    { "list", cmd_list, "list the models of this machine that have a name" },
    { "show", cmd_show, "show what a model is, in a few lines" },
    { "rm", cmd_rm, "remove a downloaded model" },
    { "inspect", cmd_inspect, "show the contents of a model file" },
    { "verify", cmd_verify, "check a model's files, down to every number in them" },
    { "manifest", cmd_manifest, "write the sizes and SHA-256 sums of a model's files" },
    { "encrypt", cmd_encrypt, "encrypt a model; it is decrypted into memory when it loads" },
    { "decrypt", cmd_decrypt, "write an encrypted model as plain files" },
    { "rekey", cmd_rekey, "change the keys of an encrypted model" },
    { "tokenize", cmd_tokenize, "turn text into token ids, and back" },
    { "embed", cmd_embed, "turn texts into embedding vectors" },
    { "classify", cmd_classify, "classify texts with an ONNX classifier" },
    { "rerank", cmd_rerank, "rank documents by their relevance to a query" },
    { "template", cmd_template, "render a chat template" },
    { "eval", cmd_eval, "measure perplexity, or agreement with reference logits" },
    { "bench", cmd_bench, "measure tokens/s, GB/s and share of the memory bandwidth" },
    { "batch", cmd_batch, "run the requests of a JSONL file, and go on after an interruption" },
    { "load", cmd_load, "load-test a server: time to first token, gaps, throughput" },
    { "convert", cmd_convert, "convert a Hugging Face folder to GGUF, or back" },
    { "quantize", cmd_quantize, "write a model with quantized weights" },
    { "imatrix", cmd_imatrix, "compute an importance matrix for quantize" },
    { "infer", cmd_infer, "generate text with a model of a running server" },
    { "status", cmd_status, "show the state of a running server" },
    { "models", cmd_models, "list, load, unload and check the models of a running server" },
    { "ps", cmd_ps, "list the models that a running server has loaded" },
    { "cancel", cmd_cancel, "cancel a request of a running server" },
    { "health", cmd_health, "ask whether a server is alive" },
    { "live", cmd_live, "the same as health" },
    { "ready", cmd_ready, "ask whether a server can serve, or wait until it can" },
    { "config", cmd_config, "show, check and explain the settings of the server" },
    { "completion", cmd_completion, "print the completions for a shell: bash, zsh, fish" },
    { "manual", cmd_manual, "print the manual page, tern(1)" },
    { "generate", cmd_run, NULL },  /* another name of run */
    { "worker", cmd_worker, NULL }, /* for tern serve --isolate; not in the help */
    { "member", cmd_member, NULL }, /* for --tp and --pp; likewise */
    { NULL, NULL, NULL },
};

static void print_help(FILE *f)
{
    fprintf(f, "tern %s - run and serve language models\n\n", cmd_version());
    fputs("usage: tern COMMAND [flags]\n\n", f);
    for (const struct cmd_entry *c = cmd_table; c->name; c++)
        if (c->help) fprintf(f, "  %-10s %s\n", c->name, c->help);
    fputs(
        "\nEach command has its own --help. tern --version prints the version.\n"
        "Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, 3 no server answers.\n"
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

int cmd_unknown_word(const char *word, const char *words, struct err *e)
{
    struct str rest = str_c(words), near = { 0 };
    struct buf list = { 0 };
    int least = 4;

    while (rest.n) {
        ptrdiff_t bar = str_find(rest, STR("|"));
        struct str one = bar < 0 ? rest : str_take(rest, (size_t)bar);
        if (str_is_nearer(str_c(word), one, &least)) near = one;
        buf_printf(&list, "%s%.*s", list.n ? ", " : "", STR_ARG(one));
        rest = str_skip(rest, one.n + 1);
    }
    if (near.n) err_set(e, E_INVALID, "unknown word '%s'; did you mean %.*s?", word, STR_ARG(near));
    else err_set(e, E_INVALID, "unknown word '%s': must be one of %s", word, buf_cstr(&list));
    buf_release(&list);
    return E_INVALID;
}

static int refuse_command(const char *verb)
{
    const char *near = NULL;
    int least = 4;

    for (const struct cmd_entry *c = cmd_table; c->name; c++)
        if (c->help && str_is_nearer(str_c(verb), str_c(c->name), &least)) near = c->name;
    fprintf(stderr, "tern: unknown command '%s'%s%s%s (tern --help lists the commands)\n", verb,
            near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    return EXIT_USAGE;
}

static bool is_one_of(const char *word, const char *a, const char *b, const char *c)
{
    return str_is(str_c(word), a) || str_is(str_c(word), b) || str_is(str_c(word), c);
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    const char *level = getenv("TERN_LOG");

    char *help[] = { argv[0], argc > 2 ? argv[2] : NULL, "--help", NULL };

    mem_return_large();
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of write(), not the end of the process */
    signal(SIGXFSZ, SIG_IGN); /* nor is a file that reaches the limit of the process */
    if (level && *level)
        log_set_level(*level == 'd' ? LOG_DEBUG : *level == 'i' ? LOG_INFO : LOG_WARN);
    if (argc > 2 && str_is(str_c(verb), "help") && argv[2][0] != '-')
        argc = 3, argv = help, verb = help[1];
    for (const struct cmd_entry *c = cmd_table; c->name; c++)
        if (str_is(str_c(verb), c->name)) return c->run(argc - 1, argv + 1);
    if (is_one_of(verb, "--version", "-V", "version")) {
        printf("tern %s\n", cmd_version());
        return EXIT_OK;
    }
    if (argc < 2 || is_one_of(verb, "--help", "-h", "help")) {
        print_help(stdout);
        return argc < 2 ? EXIT_USAGE : EXIT_OK;
    }
    return refuse_command(verb);
}
