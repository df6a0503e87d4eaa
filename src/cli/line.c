/* line.c - libedit, with Ctrl-C bound to a key function: it ends the line and is reported as
 * LINE_INTERRUPT, and the terminal is never left in the editor's mode. */
#include "cli/line.h"

#include "base/buf.h"
#include "base/mem.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HISTORY_LINES = 1000 };

struct line {
    bool tty, interrupted;
    EditLine *el;
    History *history;
    const char *prompt;
    char *input; /* getline's, which grows it with realloc */
    size_t cap;
    struct buf text;     /* the last line */
    char path[PATH_MAX]; /* of the history file; "": none */
};

static char *get_prompt(EditLine *el)
{
    struct line *l;
    el_get(el, EL_CLIENTDATA, &l);
    return (char *)l->prompt;
}

/* Ctrl-C as a key of the editor: ends the line as it is. */
static unsigned char on_ctrl_c(EditLine *el, int key)
{
    struct line *l;
    (void)key;
    el_get(el, EL_CLIENTDATA, &l);
    l->interrupted = true;
    return CC_NEWLINE;
}

/* mkdir -p; false: the folder does not exist afterwards. */
static bool make_dirs(char *path)
{
    for (char *p = path + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

static void set_history_path(struct line *l)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char dir[PATH_MAX - 16];
    int n;

    if (state && *state == '/') n = snprintf(dir, sizeof dir, "%s/tern", state);
    else if (home && *home == '/') n = snprintf(dir, sizeof dir, "%s/.local/state/tern", home);
    else return;
    if (n > 0 && (size_t)n < sizeof dir && make_dirs(dir))
        snprintf(l->path, sizeof l->path, "%s/history", dir);
}

/* libedit needs a UTF-8 locale to edit characters and not bytes. Without an editor (no memory)
 * lines are read plainly. */
static void open_editor(struct line *l, const char *program)
{
    HistEvent ev;

    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
    l->el = el_init(program, stdin, stdout, stderr);
    l->history = history_init();
    if (!l->el || !l->history) {
        l->tty = false;
        return;
    }
    el_set(l->el, EL_CLIENTDATA, l);
    el_set(l->el, EL_PROMPT, get_prompt);
    el_set(l->el, EL_EDITOR, "emacs");
    el_set(l->el, EL_SIGNAL, 0);
    /* Without -isig the terminal turns Ctrl-C into SIGINT before the editor sees the key. */
    el_set(l->el, EL_SETTY, "-d", "-isig", NULL);
    /* The wide variant: el_set(EL_ADDFN) leaks its converted strings. */
    el_wset(l->el, EL_ADDFN, L"tern-interrupt", L"end the line", on_ctrl_c);
    el_set(l->el, EL_BIND, "^C", "tern-interrupt", NULL);
    el_set(l->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    history(l->history, &ev, H_SETSIZE, HISTORY_LINES);
    history(l->history, &ev, H_SETUNIQUE, 1);
    el_set(l->el, EL_HIST, history, l->history);
    set_history_path(l);
    if (l->path[0]) history(l->history, &ev, H_LOAD, l->path);
}

struct line *line_open(const char *program)
{
    struct line *l = mem_new(struct line);

    if (!l) return NULL;
    l->tty = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (l->tty) open_editor(l, program);
    return l;
}

void line_close(struct line *l)
{
    HistEvent ev;

    if (!l) return;
    if (l->el && l->path[0]) {
        mode_t old = umask(077);
        history(l->history, &ev, H_SAVE, l->path);
        umask(old);
        chmod(l->path, 0600);
    }
    if (l->history) history_end(l->history);
    if (l->el) el_end(l->el);
    free(l->input);
    buf_release(&l->text);
    mem_free(l);
}

bool line_is_tty(const struct line *l) { return l->tty; }

/* Copies a line of n bytes without its line end; false: no memory. */
static bool set_text(struct line *l, const char *s, size_t n)
{
    if (n > 0 && s[n - 1] == '\n') n--;
    if (n > 0 && s[n - 1] == '\r') n--;
    buf_clear(&l->text);
    buf_add(&l->text, s, n);
    buf_cstr(&l->text);
    return !l->text.failed;
}

enum line_end line_read(struct line *l, const char *prompt, const char **text)
{
    const char *got;
    ssize_t n;
    int n_got = 0;

    *text = "";
    if (!l->tty) {
        if ((n = getline(&l->input, &l->cap, stdin)) < 0) return LINE_EOF;
        got = l->input;
    } else {
        l->prompt = prompt;
        l->interrupted = false;
        el_set(l->el, EL_PREP_TERM, 1); /* from the prompt on, keys belong to the editor */
        got = el_gets(l->el, &n_got);
        if (l->interrupted) fputc('\n', stdout), fflush(stdout);
        if (!got || n_got <= 0) return l->interrupted ? LINE_INTERRUPT : LINE_EOF;
        n = (ssize_t)strlen(got);
    }
    if (!set_text(l, got, (size_t)n)) return LINE_EOF;
    *text = l->text.p;
    return l->interrupted ? LINE_INTERRUPT : LINE_OK;
}

void line_remember(struct line *l, const char *text)
{
    HistEvent ev;
    if (l->history && *text) history(l->history, &ev, H_ENTER, text);
}
