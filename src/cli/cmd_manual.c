/* cmd_manual.c - tern manual: the manual page tern(1) in roff's man macros, from the tables of flags.
 * The build runs it once and `make install` installs the page. */
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/flagwalk.h"

static const struct verb verb = {
    "manual",
    "tern manual",
    "Prints the manual page tern(1).\n\n"
    "examples:\n"
    "  man tern                   the installed page\n"
    "  tern manual | man -l -     this program's",
};

/* Backslashes, dashes, and a dot or quote at the begin of a line are roff's. */
static void put_roff(struct buf *out, const char *s)
{
    bool first = true;

    for (; *s; s++) {
        if (first && (*s == '.' || *s == '\'')) buf_puts(out, "\\&");
        if (*s == '\\') buf_puts(out, "\\e");
        else if (*s == '-') buf_puts(out, "\\-");
        else buf_putc(out, *s);
        first = *s == '\n';
    }
}

/* "--ctx, -c, --ctx-size SIZE" */
static void put_names(struct buf *out, const struct flag_row *f)
{
    buf_puts(out, "\\fB"), put_roff(out, f->name), buf_puts(out, "\\fR");
    for (const char *c = f->alt ? f->alt : ""; *c; c++) {
        if (c == f->alt) buf_puts(out, ", \\fB");
        if (*c == '|') buf_puts(out, "\\fR, \\fB");
        else put_roff(out, (char[]){ *c, 0 });
    }
    if (f->alt) buf_puts(out, "\\fR");
    if (f->meta) buf_puts(out, " \\fI"), put_roff(out, f->meta), buf_puts(out, "\\fR");
}

static void put_choices(struct buf *out, const char *choices)
{
    buf_puts(out, ": ");
    for (const char *c = choices; *c; c++) {
        if (*c == '|') buf_puts(out, ", ");
        else put_roff(out, (char[]){ *c, 0 });
    }
}

static void put_flag(void *arg, const struct flag_row *f)
{
    struct buf *out = arg;

    if (f->group) buf_puts(out, ".PP\n\\fI"), put_roff(out, f->group), buf_puts(out, "\\fR\n");
    buf_puts(out, ".TP\n");
    put_names(out, f);
    buf_putc(out, '\n');
    put_roff(out, f->help);
    if (f->env && f->choices) put_choices(out, f->choices);
    if (f->env) {
        buf_puts(out, " ["), put_roff(out, f->env);
        if (*f->dflt) buf_puts(out, "; default: "), put_roff(out, f->dflt);
        buf_putc(out, ']');
    }
    buf_putc(out, '\n');
}

static void begin_command(void *arg, const struct cmd_entry *c, const char *usage,
                          const char *about)
{
    struct buf *out = arg;

    buf_puts(out, ".SS tern "), put_roff(out, c->name), buf_putc(out, '\n');
    buf_puts(out, ".nf\n\\fB"), put_roff(out, usage), buf_puts(out, "\\fR\n\n");
    put_roff(out, about);
    buf_puts(out, "\n.fi\n");
}

static void put_head(struct buf *out)
{
    buf_printf(out, ".TH TERN 1 \"\" \"tern %s\" \"User Commands\"\n", TERN_VERSION);
    buf_puts(out,
             ".SH NAME\ntern \\- run and serve language models\n"
             ".SH SYNOPSIS\n\\fBtern\\fR \\fICOMMAND\\fR [\\fIflags\\fR] [\\fIarguments\\fR]\n"
             ".SH DESCRIPTION\n"
             "tern runs language models, embedders and classifiers from GGUF and ONNX files and "
             "Hugging Face folders, on the CPU and on NVIDIA GPUs, and serves them over HTTP.\n"
             ".PP\nA flag is written \\fB\\-\\-name\\fR \\fIvalue\\fR or "
             "\\fB\\-\\-name=\\fIvalue\\fR. Names that llama.cpp and vLLM have for the same flag "
             "work in every command. Commands that talk to a running server find it by "
             "\\fB\\-\\-url\\fR, \\fB\\-\\-socket\\fR or TERN_URL.\n.PP\n");
    for (const struct cmd_entry *c = cmd_table; c->name; c++) {
        if (!c->help) continue;
        buf_puts(out, ".TP\n\\fBtern "), put_roff(out, c->name), buf_puts(out, "\\fR\n");
        put_roff(out, c->help);
        buf_putc(out, '\n');
    }
    buf_puts(out, ".SH COMMANDS\n");
}

static const char tail[] =
    ".SH EXIT STATUS\n"
    ".TP\n0\nsuccess\n"
    ".TP\n1\nfailure; one line on standard error gives the reason\n"
    ".TP\n2\nwrong usage or configuration: nothing was done\n"
    ".TP\n3\nno server answers\n"
    ".TP\n130\ninterrupted by Ctrl\\-C\n"
    ".SH ENVIRONMENT\n"
    ".TP\nTERN_URL\nthe server of the commands that talk to one\n"
    ".TP\nTERN_API_KEY\nits API key\n"
    ".TP\nTERN_MODEL\nthe model of commands that name none\n"
    ".TP\nTERN_CONFIG\nthe settings file\n"
    ".TP\nTERN_LOG\nthe level of log lines of commands other than serve: debug, info, warn\n"
    ".PP\nEvery flag of \\fBtern serve\\fR has a variable, which is shown with it.\n"
    ".SH FILES\n"
    ".TP\n~/.config/tern/tern.yaml\naliases of models for all commands\n"
    ".TP\n/etc/tern/tern.yaml\nsettings of the systemd service\n"
    ".SH SEE ALSO\n"
    "\\fBtern serve \\-\\-help=\\fIWORD\\fR prints the flags that mention a word; "
    "\\fBtern config defaults\\fR writes a settings file.\n";

static void write_page(struct buf *out)
{
    struct flag_visitor v = { begin_command, put_flag, out };

    put_head(out);
    for (const struct cmd_entry *c = cmd_table; c->name; c++)
        if (c->help) flagwalk(c, &v);
    buf_puts(out, tail);
}

int cmd_manual(int argc, char **argv)
{
    const struct arg table[] = { { 0 } };
    const char *pos;
    struct buf out = { 0 };
    struct err e = { 0 };
    bool helped;
    int n_pos, rc = args_parse(&verb, table, argc, argv, &pos, 0, &n_pos, &helped, &e);

    if (rc == OK && helped) return EXIT_OK;
    if (rc != OK) return cmd_usage(verb.name, &e);
    write_page(&out);
    rc = cli_write(stdout, &out, &e);
    buf_release(&out);
    return cmd_result(rc, &e);
}
