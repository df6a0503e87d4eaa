/* flagnames.c - settings of the server have their other names in server/settings_knobs.c; those of
 * flags that only commands have are here. A command's own table comes first: -c is --clients in
 * `tern load`. */
#include "cli/flagnames.h"

#include "server/settings_impl.h"

static const struct {
    const char *ours, *others; /* "--a|-b" */
} names[] = {
    { "model", "--gguf" },
    { "tokens", "--n-predict|--predict|--max-tokens|--max-new-tokens|--num-predict" },
    { "temp", "--temperature" },
    { "temperature", "--temp" },
    { "typical", "--typical-p" },
    { "repeat-penalty", "--repetition-penalty" },
    { "repeat-last", "--repeat-last-n" },
    { "freq-penalty", "--frequency-penalty" },
    { "seed", "-s" },
    { "stop", "--reverse-prompt" },
    { "system", "-sys|--system-prompt" },
    { "grammar", "--grammar-file" },
    { "json-schema", "--json-schema-file|-jf" },
    { "raw", "--no-conversation|-no-cnv" },
    { "gen", "--n-gen" },
    { "prompt", "--n-prompt" },
    { "repeat", "--repetitions" },
    { "batch", "--n-parallel" },
    { "step", "-ub|--ubatch-size" },
    { "output", "--output-file" },
    { "golden", "--reference" },
    { "url", "--base-url|--endpoint" },
    { "socket", "--unix-socket" },
    { "ca-file", "--cacert" },
    { "insecure", "-k" },
    { "clients", "--max-concurrency|--concurrency" },
    { "requests", "--num-prompts" },
    { "rate", "--request-rate" },
};

static bool is_among(const char *list, struct str name)
{
    struct str rest = str_c(list);

    while (rest.n) {
        ptrdiff_t bar = str_find(rest, STR("|"));
        struct str one = bar < 0 ? rest : str_take(rest, (size_t)bar);
        if (str_eq(one, name)) return true;
        rest = str_skip(rest, one.n + 1);
    }
    return false;
}

bool flagnames_find(struct str name, struct str *ours)
{
    const struct knob *k;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is_among(names[i].others, name)) return *ours = str_c(names[i].ours), true;
    if (!(k = knob_find(name, true))) return false;
    *ours = str_c(k->name);
    return true;
}

/* "--a|-b": the long ones. */
static void each_long(const char *list, const char *ours,
                      void (*fn)(void *arg, struct str other, struct str ours), void *arg)
{
    struct str rest = str_c(list);

    while (rest.n) {
        ptrdiff_t bar = str_find(rest, STR("|"));
        struct str one = bar < 0 ? rest : str_take(rest, (size_t)bar);
        if (str_starts(one, STR("--"))) fn(arg, str_skip(one, 2), str_c(ours));
        rest = str_skip(rest, one.n + 1);
    }
}

void flagnames_each(void (*fn)(void *arg, struct str other, struct str ours), void *arg)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        each_long(names[i].others, names[i].ours, fn, arg);
    for (const struct knob *k = settings_knobs; k->name; k++) each_long(k->alt, k->name, fn, arg);
}
