/* settings_help.c - tern serve --help, printed from the table. A word limits the output to the
 * knobs that mention it in a name, a group or the help text. */
#include "server/settings_impl.h"

#include <strings.h>

static const char about[] =
    "usage: tern serve [-m MODEL]... [--models-dir DIR] [--config FILE] [flags]\n"
    "\n"
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

/* Case-insensitive. text may be NULL. */
static bool contains_word(const char *text, struct str word)
{
    size_t n = text ? strlen(text) : 0;

    for (size_t i = 0; i + word.n <= n; i++)
        if (strncasecmp(text + i, word.p, word.n) == 0) return true;
    return false;
}

static const char *placeholder(const struct knob *k)
{
    static const char *const words[] = {
        [KNOB_INT] = " N",     [KNOB_SIZE] = " SIZE", [KNOB_FLOAT] = " X",
        [KNOB_BOOL] = "",      [KNOB_TEXT] = " TEXT", [KNOB_CHOICE] = " WORD",
        [KNOB_TIME] = " TIME", [KNOB_SET] = " WORDS", [KNOB_LIST] = " TEXT"
    };
    return words[k->kind];
}

/* Names, help with the choices, and the variable with the default. */
static void print_knob(FILE *f, const struct knob *k)
{
    char env[64];

    knob_env(k, env);
    fprintf(f, "  --%s%s", k->name, placeholder(k));
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

void settings_help(FILE *f, struct str word)
{
    const char *group = "", *printed = "";
    char env[64];
    int n = 0;

    if (word.n == 0) fputs(about, f);
    for (const struct knob *k = settings_knobs; k->name; k++) {
        if (k->group) group = k->group;
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
    if (word.n == 0)
        fputs("\nother:\n  --print-config\n      print the effective settings as JSON and exit\n"
              "  -h, --help, --help=WORD\n      print this help, or the flags that mention WORD\n",
              f);
}
