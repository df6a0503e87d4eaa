/* settings_help.c - tern serve --help and tern gateway --help, printed from the table. A word limits
 * the output to the knobs that mention it in a name, a group or the help text. */
#include "server/settings_impl.h"

#include <strings.h>

static const char usage[] =
    "usage: tern serve [-m MODEL]... [--models-dir DIR] [--config FILE] [flags]\n\n";

static const char about[] =
    "Serves models over HTTP: OpenAI's API, a chat page at / and metrics at /metrics. Without -m "
    "it\n"
    "serves the model that ships with tern. Every flag can also be set by an environment variable\n"
    "(TERN_ and the name in capitals with underscores) or a key of the YAML file given by "
    "--config.\n"
    "A flag overrides a variable, and a variable overrides the file. SIGTERM lets running "
    "requests\n"
    "end and then stops the server; SIGHUP reloads keys and limits.\n"
    "\n"
    "examples:\n"
    "  tern serve\n"
    "  tern serve -m model.gguf -a chat --port 9000 --api-key-file keys.txt\n"
    "  tern serve --models-dir /srv/models --isolate --memory-limit 24G\n"
    "      every model below the folder, loaded when a request names it, each in its own process\n"
    "  tern serve --config tern.yaml\n"
    "      settings by the names of the flags, and a list of models with settings of their own:\n"
    "          models-dir: /srv/models\n"
    "          isolate: true\n"
    "          models:\n"
    "            - path: qwen2.5-7b-instruct-q4_k_m.gguf   # below models-dir, if there is one\n"
    "              alias: [chat, qwen]                     # the first is the id\n"
    "              ctx: 32K\n"
    "              pinned: true                            # never unloaded for another model\n"
    "            - path: bge-small\n"
    "              keep-alive: 10m                         # idle time until it is unloaded\n"
    "  curl http://127.0.0.1:8080/v1/chat/completions -d "
    "'{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}'\n";

static const char gateway_about[] =
    "usage: tern gateway --peers URL,URL,... [flags]\n"
    "       tern gateway --nats URL [flags]\n\n"
    "Serves the API of tern serve in front of many workers (tern serve): each request goes to one "
    "of\n"
    "them, by the prefix that it has computed and by its load. A request whose worker dies goes "
    "to\n"
    "another one, and a stream continues there. The gateway has no model itself; with -m MODEL it\n"
    "reads the tokenizer of a model, and places its requests by exact token blocks. Flags can "
    "also\n"
    "be set by environment variables and a YAML file, as those of tern serve.\n"
    "\n"
    "examples:\n"
    "  tern gateway --peers http://10.0.0.1:8080,http://10.0.0.2:8080 --port 9000\n"
    "  tern gateway --nats nats://10.0.0.1:4222 --cluster-key \"$(cat key)\" --policy least\n"
    "  tern gateway --peers 'http://a:8080, http://b:8080 weight=2' -m model.gguf\n";

/* Case-insensitive. text may be NULL. */
static bool contains_word(const char *text, struct str word)
{
    size_t n = text ? strlen(text) : 0;

    for (size_t i = 0; i + word.n <= n; i++)
        if (strncasecmp(text + i, word.p, word.n) == 0) return true;
    return false;
}

const char *settings_about(void) { return about; }

const char *settings_placeholder(const struct knob *k)
{
    static const char *const words[] = {
        [KNOB_INT] = "N",     [KNOB_SIZE] = "SIZE", [KNOB_FLOAT] = "X",
        [KNOB_BOOL] = NULL,   [KNOB_TEXT] = "TEXT", [KNOB_CHOICE] = "WORD",
        [KNOB_TIME] = "TIME", [KNOB_SET] = "WORDS", [KNOB_LIST] = "TEXT"
    };
    return words[k->kind];
}

/* Names, help with the choices, and the variable with the default. */
static void print_knob(FILE *f, const struct knob *k)
{
    const char *value = settings_placeholder(k);
    char env[64];

    knob_env(k, env);
    fprintf(f, "  --%s%s%s", k->name, value ? " " : "", value ? value : "");
    for (const char *c = k->alt ? k->alt : ""; *c; c++) {
        if (c == k->alt) fputs(", ", f);
        if (*c == '|') fputs(", ", f);
        else fputc(*c, f);
    }
    fprintf(f, "\n      %s", k->help);
    if (k->choices) {
        fputs(": ", f);
        for (const char *c = k->choices; *c; c++) fputs(*c == '|' ? ", " : (char[]){ *c, 0 }, f);
    }
    fprintf(f, "\n      [%s%s%s]\n", env, k->dflt && *k->dflt ? "; default: " : "",
            k->dflt ? k->dflt : "");
}

const char *settings_gateway_about(void) { return gateway_about; }

void settings_help(FILE *f, struct str word, bool gateway)
{
    const char *group = "", *printed = "";
    char env[64];
    int n = 0;

    if (word.n == 0 && gateway) fputs(gateway_about, f);
    else if (word.n == 0) fputs(usage, f), fputs(about, f);
    for (const struct knob *k = settings_knobs; k->name; k++) {
        if (k->group) group = k->group;
        if (gateway ? !knob_is_of_gateway(k) : k->used_by == USED_BY_GATEWAY) continue;
        knob_env(k, env);
        if (word.n && !contains_word(k->name, word) && !contains_word(k->help, word) &&
            !contains_word(k->alt, word) && !contains_word(group, word) &&
            !contains_word(env, word))
            continue;
        if (group != printed) fprintf(f, "%s%s:\n", n || word.n == 0 ? "\n" : "", group);
        printed = group;
        print_knob(f, k);
        n++;
    }
    if (word.n && n == 0) fprintf(f, "no flag mentions '%.*s'\n", STR_ARG(word));
    if (word.n == 0 && !gateway)
        fputs("\nother:\n  --print-config\n      print the effective settings as JSON and exit\n"
              "  -h, --help, --help=WORD\n      print this help, or the flags that mention WORD\n",
              f);
}

/* A comment of at most 100 columns. */
static void write_comment(struct buf *out, const char *text)
{
    size_t col = 0;

    for (struct str rest = str_c(text); rest.n;) {
        ptrdiff_t blank = str_find(rest, STR(" "));
        struct str word = blank < 0 ? rest : str_take(rest, (size_t)blank);
        if (col == 0 || col + word.n > 98) buf_puts(out, col ? "\n#" : "#"), col = 1;
        buf_printf(out, " %.*s", STR_ARG(word));
        col += word.n + 1;
        rest = str_skip(rest, word.n + 1);
    }
    buf_putc(out, '\n');
}

/* As the settings file takes it: JSON is YAML, and a default is written as in the table. */
static void write_pair(struct buf *out, const struct settings *s, const struct knob *k)
{
    struct jsonw w = { .out = out };

    if (settings_from(s, k) == FROM_DEFAULT) {
        buf_printf(out, "#%s: %s\n", k->name, k->dflt && *k->dflt ? k->dflt : "\"\"");
        return;
    }
    buf_printf(out, "%s: ", k->name);
    if (k->secret) buf_puts(out, "\"\" # hidden");
    else if (k->kind == KNOB_LIST) knob_write_list(&w, s, k);
    else knob_write(&w, s, k);
    buf_putc(out, '\n');
}

void settings_write_yaml(const struct settings *s, struct buf *out)
{
    for (const struct knob *k = settings_knobs; k->name; k++) {
        if (k->group) buf_printf(out, "%s# ---- %s ----\n", out->n ? "\n" : "", k->group);
        buf_putc(out, '\n');
        write_comment(out, k->help);
        write_pair(out, s, k);
    }
}
