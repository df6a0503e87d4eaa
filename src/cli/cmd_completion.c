/* cmd_completion.c - tern completion: a script that completes commands, flags, words of flags, files and
 * names of models, for bash, zsh or fish.
 *
 * One writer per shell over the same walk of the tables. The scripts have every flag written out and
 * start no process while a flag is completed. Names of models are asked from the server ($TERN_URL),
 * with a time limit of one second, and only where the name of a served model is completed. Names with
 * other characters than those of file names are left out: bash expands what it completes. */
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/flagwalk.h"

static const struct verb verb = {
    "completion",
    "tern completion bash|zsh|fish",
    "Prints the completions for a shell.\n\n"
    "examples:\n"
    "  source <(tern completion bash)\n"
    "  tern completion bash > ~/.local/share/bash-completion/completions/tern\n"
    "  tern completion zsh > ~/.zfunc/_tern        # a folder of fpath, before compinit\n"
    "  tern completion fish > ~/.config/fish/completions/tern.fish",
};

#define LIST_SERVED                                                        \
    "tern models list --timeout 1 2>/dev/null | sed 1d | cut -d' ' -f1 | " \
    "grep -xE '[A-Za-z0-9._/:@+-]+'"

/* State of a writer while it walks over the flags. */
struct writer {
    struct buf *out;
    const struct cmd_entry *c;
};

/* Commands whose --model is a name that the server knows, not a file. */
static bool has_served_names(const char *command)
{
    return str_is(str_c(command), "infer") || str_is(str_c(command), "ready") ||
           str_is(str_c(command), "load");
}

static bool is_served_name(const struct writer *w, const struct flag_row *f)
{
    return str_is(str_c(f->name), "--model") && has_served_names(w->c->name);
}

/* Calls put for each name of a flag. */
static void each_name(struct writer *w, const struct flag_row *f,
                      void (*put)(struct writer *w, struct str name, const struct flag_row *f))
{
    struct str rest = str_c(f->alt);

    put(w, str_c(f->name), f);
    while (rest.n) {
        ptrdiff_t bar = str_find(rest, STR("|"));
        struct str one = bar < 0 ? rest : str_take(rest, (size_t)bar);
        put(w, one, f);
        rest = str_skip(rest, one.n + 1);
    }
}

/* "a|b" as "a b". */
static void put_words(struct buf *out, const char *words)
{
    for (; *words; words++) buf_putc(out, *words == '|' ? ' ' : *words);
}

static void put_commands(struct buf *out)
{
    for (const struct cmd_entry *c = cmd_table; c->name; c++)
        if (c->help) buf_printf(out, "%s ", c->name);
}

static void walk_all(struct buf *out,
                     void (*begin)(void *, const struct cmd_entry *, const char *, const char *),
                     void (*flag)(void *, const struct flag_row *), const char *end)
{
    for (const struct cmd_entry *c = cmd_table; c->name; c++) {
        struct writer w = { out, c };
        struct flag_visitor v = { begin, flag, &w };
        if (!c->help) continue;
        flagwalk(c, &v);
        buf_puts(out, end);
    }
}

/* ---- bash ---- */

static const char bash_head[] =
    "# bash completion for tern; written by `tern completion bash`\n"
    "_tern_served() { tern models list --timeout 1 2>/dev/null | sed 1d | cut -d' ' -f1 | grep -xE "
    "'[A-Za-z0-9._/:@+-]+'; }\n"
    "_tern_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$cur\"); }\n"
    "_tern_files() { compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "
    "\"$cur\"); }\n"
    "_tern() {\n"
    "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} "
    "verb=${COMP_WORDS[1]}\n"
    "  local flags='' words='' n=$COMP_CWORD\n"
    "  COMPREPLY=()\n"
    "  # --flag=value comes as three words\n"
    "  if [ \"$cur\" = = ]; then cur=''; elif [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD "
    "- "
    "2]}; fi\n"
    "  if [ \"$n\" -eq 1 ]; then\n"
    "    _tern_words '";

static const char bash_tail[] =
    "  esac\n"
    "  case $cur in -*) _tern_words \"$flags --help\"; return ;; esac\n"
    "  if [ \"$n\" -eq 2 ] && [ -n \"$words\" ]; then _tern_words \"$words\"; return; fi\n"
    "  case $verb:${COMP_WORDS[2]} in\n"
    "  models:load | models:unload | models:reload | models:verify) _tern_words "
    "\"$(_tern_served)\"; "
    "return ;;\n"
    "  esac\n"
    "  _tern_files\n"
    "}\n"
    "complete -F _tern tern\n";

static void put_bash_name(struct writer *w, struct str name, const struct flag_row *f)
{
    (void)f;
    buf_printf(w->out, "%.*s ", STR_ARG(name));
}

static void put_bash_pattern(struct writer *w, struct str name, const struct flag_row *f)
{
    buf_printf(w->out, "%s%.*s", str_is(name, f->name) ? "    " : " | ", STR_ARG(name));
}

static void begin_bash_flags(void *arg, const struct cmd_entry *c, const char *usage,
                             const char *about)
{
    struct writer *w = arg;
    const char *words = flagwalk_words(c->name);

    (void)usage, (void)about;
    buf_printf(w->out, "  %s)\n    ", c->name);
    if (words) buf_puts(w->out, "words='"), put_words(w->out, words), buf_puts(w->out, "' ");
    buf_puts(w->out, "flags='");
}

static void add_bash_flag(void *arg, const struct flag_row *f) { each_name(arg, f, put_bash_name); }

/* The kind of value that follows a flag. */
static void add_bash_value(void *arg, const struct flag_row *f)
{
    struct writer *w = arg;

    if (!f->meta) return;
    each_name(w, f, put_bash_pattern);
    if (f->choices) {
        buf_puts(w->out, ") _tern_words '"), put_words(w->out, f->choices);
        buf_puts(w->out, "' ;;\n");
    } else if (is_served_name(w, f)) {
        buf_puts(w->out, ") _tern_words \"$(_tern_served)\" ;;\n");
    } else {
        buf_puts(w->out, flagwalk_is_path(f) ? ") _tern_files ;;\n" : ") return ;;\n");
    }
}

static void begin_bash_values(void *arg, const struct cmd_entry *c, const char *usage,
                              const char *about)
{
    struct writer *w = arg;

    (void)usage, (void)about;
    buf_printf(w->out, "  %s)\n    case $prev in\n", c->name);
}

/* The flags of every command, then the values of those that take one. */
static void write_bash(struct buf *out)
{
    buf_puts(out, bash_head);
    put_commands(out);
    buf_puts(out, "--help --version'\n    return\n  fi\n  case $verb in\n");
    walk_all(out, begin_bash_flags, add_bash_flag, "'\n    ;;\n");
    buf_puts(out, "  esac\n  case $verb in\n");
    walk_all(out, begin_bash_values, add_bash_value,
             "    *) false ;;\n    esac && return\n    ;;\n");
    buf_puts(out, bash_tail);
}

/* ---- zsh ---- */

/* Inside '...' and a description in brackets. */
static void put_zsh_text(struct buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '\'') buf_puts(out, "'\\''");
        else if (strchr("[]:\\", *s)) buf_printf(out, "\\%c", *s);
        else buf_putc(out, *s);
    }
}

static void put_zsh_name(struct writer *w, struct str name, const struct flag_row *f)
{
    buf_printf(w->out, "      '*%.*s[", STR_ARG(name));
    put_zsh_text(w->out, f->help);
    buf_putc(w->out, ']');
    if (f->meta) {
        buf_putc(w->out, ':'), put_zsh_text(w->out, f->meta), buf_putc(w->out, ':');
        if (f->choices) {
            buf_putc(w->out, '('), put_words(w->out, f->choices), buf_putc(w->out, ')');
        } else if (is_served_name(w, f)) buf_puts(w->out, "_tern_served");
        else if (flagwalk_is_path(f)) buf_puts(w->out, "_files");
    }
    buf_puts(w->out, "' \\\n");
}

static void begin_zsh(void *arg, const struct cmd_entry *c, const char *usage, const char *about)
{
    struct writer *w = arg;
    const char *words = flagwalk_words(c->name);

    (void)usage, (void)about;
    buf_printf(w->out, "  %s)\n    _arguments \\\n", c->name);
    if (!words) return;
    buf_puts(w->out, "      '1:word:("), put_words(w->out, words), buf_puts(w->out, ")' \\\n");
}

static void add_zsh_flag(void *arg, const struct flag_row *f) { each_name(arg, f, put_zsh_name); }

static void write_zsh(struct buf *out)
{
    buf_puts(out, "#compdef tern\n# written by `tern completion zsh`\n"
                  "_tern_served() {\n  local -a names\n"
                  "  names=(${(f)\"$(" LIST_SERVED ")\"})\n  compadd -a names\n}\n"
                  "_tern() {\n  local -a commands\n  commands=(\n");
    for (const struct cmd_entry *c = cmd_table; c->name; c++) {
        if (!c->help) continue;
        buf_printf(out, "    '%s:", c->name);
        put_zsh_text(out, c->help);
        buf_puts(out, "'\n");
    }
    buf_puts(out, "  )\n  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
                  "  local verb=$words[2]\n  shift words; (( CURRENT-- ))\n  case $verb in\n");
    walk_all(out, begin_zsh, add_zsh_flag, "      '*:argument:_files'\n    ;;\n");
    buf_puts(out, "  esac\n}\n_tern \"$@\"\n");
}

/* ---- fish ---- */

static void put_fish_text(struct buf *out, const char *s)
{
    buf_putc(out, '\'');
    for (; *s; s++) {
        if (*s == '\'' || *s == '\\') buf_putc(out, '\\');
        buf_putc(out, *s);
    }
    buf_putc(out, '\'');
}

/* -c is a short option, -ngl one of the old style, --ctx a long one. */
static void put_fish_name(struct writer *w, struct str name, const struct flag_row *f)
{
    const char *kind = str_starts(name, STR("--")) ? "-l" : name.n == 2 ? "-s" : "-o";

    buf_printf(w->out, "complete -c tern -n '__fish_seen_subcommand_from %s' %s %.*s", w->c->name,
               kind, STR_ARG(str_skip(name, kind[1] == 'l' ? 2 : 1)));
    if (f->meta && f->choices) {
        buf_puts(w->out, " -x -a '"), put_words(w->out, f->choices), buf_putc(w->out, '\'');
    } else if (f->meta && is_served_name(w, f)) buf_puts(w->out, " -x -a '(__tern_served)'");
    else if (f->meta) buf_puts(w->out, flagwalk_is_path(f) ? " -r -F" : " -x");
    buf_puts(w->out, " -d ");
    put_fish_text(w->out, f->help);
    buf_putc(w->out, '\n');
}

static void add_fish_flag(void *arg, const struct flag_row *f) { each_name(arg, f, put_fish_name); }

static void write_fish(struct buf *out)
{
    buf_puts(out, "# fish completion for tern; written by `tern completion fish`\n"
                  "function __tern_served\n"
                  "  tern models list --timeout 1 2>/dev/null | sed 1d | cut -d' ' -f1 | grep -xE "
                  "'[A-Za-z0-9._/:@+-]+'\nend\n");
    for (const struct cmd_entry *c = cmd_table; c->name; c++) {
        const char *words = flagwalk_words(c->name);
        if (!c->help) continue;
        buf_printf(out, "complete -c tern -n __fish_use_subcommand -f -a %s -d ", c->name);
        put_fish_text(out, c->help);
        buf_putc(out, '\n');
        if (!words) continue;
        buf_printf(out, "complete -c tern -n '__fish_seen_subcommand_from %s' -f -a '", c->name);
        put_words(out, words), buf_puts(out, "'\n");
    }
    walk_all(out, NULL, add_fish_flag, "");
}

/* ---- the command ---- */

static int write_script(struct buf *out, const char *shell, struct err *e)
{
    if (str_is(str_c(shell), "bash")) write_bash(out);
    else if (str_is(str_c(shell), "zsh")) write_zsh(out);
    else if (str_is(str_c(shell), "fish")) write_fish(out);
    else return cmd_unknown_word(shell, COMPLETION_WORDS, e);
    return OK;
}

int cmd_completion(int argc, char **argv)
{
    const struct arg table[] = { { 0 } };
    const char *shell = NULL;
    struct buf out = { 0 };
    struct err e = { 0 };
    bool helped;
    int n_pos, rc = args_parse(&verb, table, argc, argv, &shell, 1, &n_pos, &helped, &e);

    if (rc == OK && helped) return EXIT_OK;
    if (rc == OK && n_pos == 0) rc = err_set(&e, E_INVALID, "name a shell: bash, zsh or fish");
    if (rc == OK) rc = write_script(&out, shell, &e);
    if (rc != OK) return cmd_usage(verb.name, &e);
    rc = cli_write(stdout, &out, &e);
    buf_release(&out);
    return cmd_result(rc, &e);
}
