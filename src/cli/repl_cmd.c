/* repl_cmd.c - what a line that begins with / does. */
#include "cli/repl.h"
#include "cli/cmd.h"

#include <stdlib.h>
#include <string.h>

static void note(const char *what) { fprintf(stderr, "(%s)\n", what); }

struct command {
    const char *name, *args, *help;
    void (*run)(struct chat *c, char *arg);
};
static const struct command commands[];

static void do_help(struct chat *c, char *arg)
{
    (void)c, (void)arg;
    for (const struct command *k = commands; k->name; k++)
        fprintf(stderr, "  %-8s %-11s %s\n", k->name, k->args, k->help);
    fprintf(stderr,
            "  a line that ends with \\ goes on; \"\"\" opens and closes a text of many lines\n"
            "  Ctrl-C stops an answer, Ctrl-D leaves\n");
}

static void do_clear(struct chat *c, char *arg)
{
    (void)arg;
    talk_clear(&c->talk);
    note("a new talk; the system message stays");
}

static void do_system(struct chat *c, char *arg)
{
    talk_set_system(&c->talk, arg);
    note(*arg ? "system message set" : "no system message");
}

/* One setting by its name: where it is, or NULL. */
static void setting(tern_params *p, const char *name, float **f, int **i)
{
    struct {
        const char *name;
        float *f;
        int *i;
    } all[] = {
        { "temp", &p->temp, NULL },
        { "top_k", NULL, &p->top_k },
        { "top_p", &p->top_p, NULL },
        { "min_p", &p->min_p, NULL },
        { "typical", &p->typical, NULL },
        { "repeat_penalty", &p->repeat_penalty, NULL },
        { "repeat_last", NULL, &p->repeat_last },
        { "freq_penalty", &p->freq_penalty, NULL },
        { "presence_penalty", &p->presence_penalty, NULL },
        { "max_tokens", NULL, &p->max_tokens },
    };
    *f = NULL, *i = NULL;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if (strcmp(name, all[k].name) == 0) *f = all[k].f, *i = all[k].i;
}

static void show_settings(const tern_params *p)
{
    fprintf(
        stderr,
        "  temp %g, top_k %d, top_p %g, min_p %g, typical %g, repeat_penalty %g, repeat_last %d,\n"
        "  freq_penalty %g, presence_penalty %g, max_tokens %d, seed %llu\n",
        (double)p->temp, p->top_k, (double)p->top_p, (double)p->min_p, (double)p->typical,
        (double)p->repeat_penalty, p->repeat_last, (double)p->freq_penalty,
        (double)p->presence_penalty, p->max_tokens, (unsigned long long)p->seed);
}

/* "temp 0.5"; what the sampler would refuse is refused here. */
static void do_set(struct chat *c, char *arg)
{
    tern_params p = c->g->params;
    char *name = strtok(arg, " \t="), *value = strtok(NULL, " \t="), *end = NULL;
    tern_request *probe = NULL;
    const int32_t first = 0;
    float *f;
    int *i;

    if (!name) {
        show_settings(&p);
        return;
    }
    name += strspn(name, "-");
    for (char *s = name; *s; s++) *s = *s == '-' ? '_' : *s;
    setting(&p, name, &f, &i);
    if (value && f) *f = strtof(value, &end);
    else if (value && i) *i = (int)strtol(value, &end, 10);
    else if (value && strcmp(name, "seed") == 0) p.seed = strtoull(value, &end, 10);
    if (!end || end == value || *end) {
        note("/set NAME VALUE; /set alone shows the names");
        return;
    }
    if (tern_submit_ids(&probe, c->g->m, &first, 1, &p) != TERN_OK)
        fprintf(stderr, "(%s)\n", tern_error());
    else c->g->params = p;
    tern_request_close(probe);
}

static void do_stats(struct chat *c, char *arg)
{
    (void)arg;
    gen_print_stats(stderr, c->g, &c->stats);
    fprintf(stderr, "[%s on %s | %zu messages | context %d of %d tokens]\n", c->g->info.name,
            c->g->info.device, c->talk.n, c->stats.prompt_tokens + c->stats.tokens,
            c->g->info.context);
}

static void do_save(struct chat *c, char *arg)
{
    struct err e = { 0 };

    if (!*arg) note("/save FILE");
    else if (talk_save(&c->talk, arg, &e) != OK) cmd_fail(&e);
    else fprintf(stderr, "(%zu messages in %s)\n", c->talk.n, arg);
}

static void do_load(struct chat *c, char *arg)
{
    struct err e = { 0 };

    if (!*arg) note("/load FILE");
    else if (talk_load(&c->talk, arg, &e) != OK) cmd_fail(&e);
    else fprintf(stderr, "(%zu messages from %s)\n", c->talk.n, arg);
}

static void do_exit(struct chat *c, char *arg)
{
    (void)arg;
    c->leaving = true;
}

static const struct command commands[] = {
    { "/help", "", "this list", do_help },
    { "/clear", "", "forget the talk", do_clear },
    { "/system", "TEXT", "instructions for the model; nothing: none", do_system },
    { "/set", "NAME VALUE", "a setting, as in /set temp 0.5; alone: all of them", do_set },
    { "/stats", "", "tokens and times of the last answer", do_stats },
    { "/save", "FILE", "keep the talk (JSON)", do_save },
    { "/load", "FILE", "go on with a kept talk", do_load },
    { "/exit", "", "leave, as Ctrl-D does", do_exit },
    { 0 },
};

void chat_command(struct chat *c, char *text)
{
    size_t n = strcspn(text, " \t");
    char *arg = text + n + strspn(text + n, " \t");

    text[n] = 0;
    for (char *end = arg + strlen(arg); end > arg && (end[-1] == ' ' || end[-1] == '\t');)
        *--end = 0;
    for (const struct command *k = commands; k->name; k++)
        if (strcmp(text, k->name) == 0 || (k->run == do_exit && strcmp(text, "/quit") == 0)) {
            k->run(c, arg);
            return;
        }
    fprintf(stderr, "(no command %s; /help lists them)\n", text);
}
