/* repl_cmd.c - the commands of the interactive chat: lines that begin with '/'. */
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/repl.h"

#include <stdlib.h>
#include <string.h>

struct command {
    const char *name, *args, *help;
    void (*run)(struct repl *r, char *arg);
};
/* The table is below: its functions are defined first. */
static const struct command commands[];

static void do_help(struct repl *r, char *arg)
{
    (void)r, (void)arg;
    for (const struct command *k = commands; k->name; k++)
        fprintf(stderr, "  %-8s %-11s %s\n", k->name, k->args, k->help);
    fprintf(
        stderr,
        "  a line that ends with \\ continues on the next one; \"\"\" begins and ends a text of "
        "several lines\n"
        "  Ctrl-C stops an answer, Ctrl-D exits\n");
}

static void do_clear(struct repl *r, char *arg)
{
    (void)arg;
    conversation_clear(&r->conversation);
    repl_note("the conversation is empty; the system message is kept");
}

static void do_system(struct repl *r, char *arg)
{
    if (!conversation_set_system(&r->conversation, arg)) cli_nomem();
    repl_note(*arg ? "system message set" : "no system message");
}

/* Finds a sampling parameter by its name: *f or *i points to it; both NULL: no such name. */
static void find_setting(tern_params *p, const char *name, float **f, int **i)
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

/* All sampling parameters with their current values. */
static void print_settings(const tern_params *p)
{
    fprintf(
        stderr,
        "  temp %g, top_k %d, top_p %g, min_p %g, typical %g, repeat_penalty %g, repeat_last %d,\n"
        "  freq_penalty %g, presence_penalty %g, max_tokens %d, seed %llu\n",
        (double)p->temp, p->top_k, (double)p->top_p, (double)p->min_p, (double)p->typical,
        (double)p->repeat_penalty, p->repeat_last, (double)p->freq_penalty,
        (double)p->presence_penalty, p->max_tokens, (unsigned long long)p->seed);
}

/* arg: "temp 0.5". A request that is not run checks the value as the sampler would. */
static void do_set(struct repl *r, char *arg)
{
    tern_params p = r->g->params;
    char *name = strtok(arg, " \t="), *value = strtok(NULL, " \t="), *end = NULL;
    tern_request *probe = NULL;
    const int32_t first = 0;
    float *f;
    int *i;

    if (!name) {
        print_settings(&p);
        return;
    }
    name += strspn(name, "-");
    for (char *s = name; *s; s++) *s = *s == '-' ? '_' : *s;
    find_setting(&p, name, &f, &i);
    if (value && f) *f = strtof(value, &end);
    else if (value && i) *i = (int)strtol(value, &end, 10);
    else if (value && strcmp(name, "seed") == 0) p.seed = strtoull(value, &end, 10);
    if (!end || end == value || *end) {
        repl_note("usage: /set NAME VALUE; /set alone lists the names");
        return;
    }
    if (tern_submit_ids(&probe, r->g->m, &first, 1, &p) != TERN_OK)
        fprintf(stderr, "(%s)\n", tern_error());
    else r->g->params = p;
    tern_request_close(probe);
}

/* Statistics of the last answer, and how much of the context is in use. */
static void do_stats(struct repl *r, char *arg)
{
    (void)arg;
    gen_print_stats(stderr, r->g, &r->stats);
    fprintf(stderr, "[%s on %s | %zu messages | context %d of %d tokens]\n", r->g->info.name,
            r->g->info.device, r->conversation.n, r->stats.prompt_tokens + r->stats.tokens,
            r->g->info.context);
}

static void do_save(struct repl *r, char *arg)
{
    struct err e = { 0 };

    if (!*arg) repl_note("usage: /save FILE");
    else if (conversation_save(&r->conversation, arg, &e) != OK) cmd_fail(&e);
    else fprintf(stderr, "(%zu messages saved in %s)\n", r->conversation.n, arg);
}

/* The system message comes from the file, too. */
static void do_load(struct repl *r, char *arg)
{
    struct err e = { 0 };

    if (!*arg) repl_note("usage: /load FILE");
    else if (conversation_load(&r->conversation, arg, &e) != OK) cmd_fail(&e);
    else fprintf(stderr, "(%zu messages loaded from %s)\n", r->conversation.n, arg);
}

static void do_exit(struct repl *r, char *arg)
{
    (void)arg;
    r->leaving = true;
}

static const struct command commands[] = {
    { "/help", "", "list the commands", do_help },
    { "/clear", "", "start a new conversation; the system message is kept", do_clear },
    { "/system", "TEXT", "set the system message; without TEXT: remove it", do_system },
    { "/set", "NAME VALUE", "change a setting: /set temp 0.5; without NAME: list them", do_set },
    { "/stats", "", "show tokens and times of the last answer", do_stats },
    { "/save", "FILE", "save the conversation as JSON", do_save },
    { "/load", "FILE", "continue a saved conversation", do_load },
    { "/exit", "", "exit, like Ctrl-D", do_exit },
    { 0 },
};

/* Splits the line into command and argument, without white space around the argument. */
void repl_command(struct repl *r, char *text)
{
    size_t n = strcspn(text, " \t");
    char *arg = text + n + strspn(text + n, " \t");

    text[n] = 0;
    for (char *end = arg + strlen(arg); end > arg && (end[-1] == ' ' || end[-1] == '\t');)
        *--end = 0;
    for (const struct command *k = commands; k->name; k++)
        if (strcmp(text, k->name) == 0 || (k->run == do_exit && strcmp(text, "/quit") == 0)) {
            k->run(r, arg);
            return;
        }
    fprintf(stderr, "(unknown command %s; /help lists the commands)\n", text);
}
