/* settings_help.c - help, printed from the table. */
#include "server/settings_impl.h"

#include <strings.h>

static const char about[] =
    "usage: tern serve [-m MODEL]... [flags]\n"
    "\n"
    "Serves models over HTTP with OpenAI's API, a chat page at / and metrics at /metrics. Without "
    "-m, the\n"
    "model that ships is served. Every flag is also a variable, TERN_ and its name in capitals "
    "with\n"
    "underscores, and a key of the YAML file --config names; a flag wins over a variable, a "
    "variable over\n"
    "the file. SIGTERM lets running requests end, then stops; SIGHUP reads keys and limits again.\n"
    "\n"
    "examples:\n"
    "  tern serve\n"
    "  tern serve -m model.gguf -a chat --port 9000 --api-key-file keys.txt\n"
    "  curl http://127.0.0.1:8080/v1/chat/completions -d "
    "'{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}'\n";

static bool mentions(const char *text, struct str word)
{
    size_t n = text ? strlen(text) : 0;

    for (size_t i = 0; i + word.n <= n; i++)
        if (strncasecmp(text + i, word.p, word.n) == 0) return true;
    return false;
}

static const char *meta(const struct knob *k)
{
    static const char *const words[] = {
        [KNOB_INT] = " N",     [KNOB_SIZE] = " SIZE", [KNOB_FLOAT] = " X",
        [KNOB_BOOL] = "",      [KNOB_TEXT] = " TEXT", [KNOB_CHOICE] = " WORD",
        [KNOB_TIME] = " TIME", [KNOB_SET] = " WORDS", [KNOB_LIST] = " TEXT"
    };
    return words[k->kind];
}

static void print_knob(FILE *f, const struct knob *k)
{
    char env[64];

    knob_env(k, env);
    fprintf(f, "  --%s%s", k->name, meta(k));
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
        if (word.n && !mentions(k->name, word) && !mentions(k->help, word) &&
            !mentions(k->alt, word) && !mentions(group, word) && !mentions(env, word))
            continue;
        if (group != printed) fprintf(f, "%s%s:\n", n || word.n == 0 ? "\n" : "", group);
        printed = group;
        print_knob(f, k);
        n++;
    }
    if (word.n && n == 0) fprintf(f, "no flag has to do with '%.*s'\n", STR_ARG(word));
    if (word.n == 0)
        fputs("\nother:\n  --print-config\n      print the settings as they would be, as JSON, and "
              "exit\n"
              "  -h, --help, --help=WORD\n      this help, or the part that has to do with WORD\n",
              f);
}
