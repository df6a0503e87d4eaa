/* cmd_quantize.c - tern quantize: write a model with quantized weights. The work is
 * convert/quantize; here are the flags, the progress bar, Ctrl-C and the perplexity. */
#include "base/file.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/guard.h"
#include "cli/evalmodel.h"
#include "cli/progress.h"
#include "cli/quantize_report.h"
#include "format/manifest.h"
#include "quant/rtn.h"

#include <signal.h>

static const struct verb verb = {
    "quantize",
    "tern quantize IN OUT.gguf [--type Q4_K_M]",
    "Writes the model IN (a GGUF file, also a split one, or a Hugging Face folder) as the GGUF\n"
    "file OUT with quantized matrices; tokenizer, chat template and all other keys are kept. OUT\n"
    "appears when it is complete, and is read back; OUT.gguf.sha256 gets its size and SHA-256, "
    "for\n"
    "tern verify and sha256sum -c. --types lists the types.\n\n"
    "examples:\n"
    "  tern quantize model-f16.gguf model-q4_k_m.gguf\n"
    "  tern imatrix -m model-f16.gguf -f text.txt -o model.imatrix\n"
    "  tern quantize model-f16.gguf model-iq4_xs.gguf --type IQ4_XS --imatrix model.imatrix\n"
    "  tern quantize folder/ out.gguf --type Q4_K_S --tensor-type 'ffn_down=q6_k' --report",
};

static volatile sig_atomic_t stopped; /* Ctrl-C: quantize_run ends and removes its file */

static void on_signal(int sig)
{
    (void)sig;
    stopped = 1;
}

static void on_progress(void *arg, const struct rewrite_progress *p)
{
    progress_show(arg, p->done_bytes, p->bytes, p->name);
}

static int list_types(void)
{
    for (int i = 0; plan_mix_at(i); i++)
        printf("  %-10s %s\n", plan_mix_at(i)->name, plan_mix_at(i)->about);
    return EXIT_OK;
}

struct quantize_flags {
    const char *type, *imatrix, *output, *embd, *split, *ppl;
    struct arg_list rules;
    struct guard guard;
    int ctx, chunks;
    bool dry, json, quiet, types, pure, requantize, report;
};

static int parse_type(const char *flag, const char *value, enum dtype *out, struct err *e)
{
    *out = value ? dtype_by_name(str_c(value)) : DT_NONE;
    if (value && (*out == DT_NONE || !rtn_can(*out)))
        return err_set(e, E_INVALID, "%s %s: not a type that tern can write", flag, value);
    return OK;
}

/* Arguments and flags into q; a third argument is the type, as in llama-quantize. */
static int fill_options(const struct quantize_flags *f, const char **pos, int n_pos,
                        struct quantize *q, struct err *e)
{
    const char *type = n_pos == 3 ? pos[2] : f->type;
    int rc;

    if (n_pos < 1 || (n_pos < 2 && !f->dry))
        return err_set(e, E_INVALID, "two arguments are needed: a model and the file to write");
    q->in = pos[0];
    q->out = n_pos > 1 ? pos[1] : "-";
    q->plan_opt.mix = plan_mix_by_name(str_c(type));
    if (!q->plan_opt.mix)
        return err_set(e, E_INVALID, "--type %s: unknown type (--types lists them)", type);
    if (!f->dry && file_is_dir(q->out))
        return err_set(e, E_INVALID, "%s is a folder; name the GGUF file to write", q->out);
    if (f->split && !cmd_size(f->split, &q->split_bytes))
        return err_set(e, E_INVALID, "--split-size %s: must be a size such as 2G or 500M",
                       f->split);
    if ((rc = parse_type("--output-type", f->output, &q->plan_opt.output, e)) != OK) return rc;
    if ((rc = parse_type("--embd-type", f->embd, &q->plan_opt.embd, e)) != OK) return rc;
    for (int i = 0; i < f->rules.n; i++)
        if ((rc = plan_rule_add(&q->plan_opt.rules, f->rules.at[i], e)) != OK) return rc;
    q->imatrix_path = f->imatrix;
    q->plan_opt.pure = f->pure;
    q->plan_opt.requantize = f->requantize;
    q->measure = f->report;
    return OK;
}

/* Perplexity of one model on --ppl's text, by the default scoring of tern eval ppl. */
static int measure_ppl(const struct quantize_flags *f, const char *model, int threads, double *out,
                       struct err *e)
{
    struct eval_opt o = {
        .model = model, .file = f->ppl, .n_ctx = f->ctx, .n_chunks = f->chunks, .n_threads = threads
    };
    struct eval_ppl_result r;
    int rc = eval_ppl_run(&o, &r, e);

    if (rc == OK) *out = r.ppl;
    return rc;
}

static int write_model(struct quantize *q, const struct quantize_flags *f, struct err *e)
{
    struct progress bar;
    int rc;

    q->progress = on_progress;
    q->progress_arg = &bar;
    q->stop = &stopped;
    progress_begin(&bar, true, f->quiet);
    rc = quantize_run(q, e);
    progress_end(&bar);
    return rc;
}

static void on_hashed(void *arg, uint64_t done, uint64_t total, const char *name)
{
    progress_show(arg, done, total, name);
}

static int write_sums(const struct quantize *q, const struct quantize_flags *f, struct err *e)
{
    char *first = cli_need(rewrite_part_name(q->out, 0, q->result.n_files));
    struct progress bar;
    struct manifest_opt opt = { .n_threads = q->n_threads, .progress = on_hashed, .arg = &bar };
    int rc;

    progress_begin(&bar, true, f->quiet);
    rc = manifest_write(first, &opt, NULL, e);
    progress_end(&bar);
    mem_free(first);
    return rc;
}

/* The whole command: perplexity before, writing, perplexity after (of the first file of a split
 * model, which finds the others). */
static int quantize_model(struct quantize *q, struct quantize_flags *f, struct quantize_report *r,
                          struct err *e)
{
    int rc;

    if ((rc = cmd_model(&q->in, e)) != OK) return rc;
    if ((rc = guard_join(&f->guard, e)) != OK) return rc;
    if ((rc = quantize_open(q, e)) != OK || f->dry) return rc;
    if (f->ppl && (rc = measure_ppl(f, q->in, q->n_threads, &r->ppl_before, e)) != OK) return rc;
    if ((rc = write_model(q, f, e)) != OK) return rc;
    if ((rc = write_sums(q, f, e)) != OK) return rc;
    if (f->ppl) {
        char *first = cli_need(rewrite_part_name(q->out, 0, q->result.n_files));
        rc = measure_ppl(f, first, q->n_threads, &r->ppl_after, e);
        mem_free(first);
    }
    return rc;
}

static int print_report(const struct quantize_flags *f, const struct quantize_report *r,
                        struct err *e)
{
    struct buf out = { 0 };
    int rc;

    if (f->json) quantize_report_json(r, &out);
    else quantize_report_text(r, &out);
    rc = cli_write(f->json || f->dry || f->report ? stdout : stderr, &out, e);
    buf_release(&out);
    return rc;
}

int cmd_quantize(int argc, char **argv)
{
    struct quantize_flags f = { .type = "Q4_K_M", .ctx = 512 };
    struct quantize q = { 0 };
    struct quantize_report r = { .q = &q };
    const char *pos[3] = { 0 };
    bool helped;
    const struct arg table[] = {
        { "--type", NULL, ARG_STR, &f.type, "T", "type of the result (Q4_K_M)" },
        { "--types", NULL, ARG_FLAG, &f.types, NULL, "list the types and exit" },
        { "--imatrix", NULL, ARG_STR, &f.imatrix, "FILE",
          "importance matrix, by tern imatrix or another program" },
        { "--tensor-type", NULL, ARG_LIST, &f.rules, "RE=T",
          "tensors whose name matches RE get type T; repeatable" },
        { "--output-type", NULL, ARG_STR, &f.output, "T", "type of output.weight" },
        { "--embd-type", NULL, ARG_STR, &f.embd, "T", "type of token_embd.weight" },
        { "--pure", NULL, ARG_FLAG, &f.pure, NULL, "all matrices in the same type" },
        { "--requantize", NULL, ARG_FLAG, &f.requantize, NULL,
          "allow quantized tensors as input, which loses more" },
        { "--split-size", NULL, ARG_STR, &f.split, "SIZE",
          "split into files of at most this size: 2G, 500M" },
        GUARD_KEY_ARGS(&f.guard),
        { "--threads", "-t", ARG_INT, &q.n_threads, "N", "threads (physical cores)" },
        { "--dry-run", NULL, ARG_FLAG, &f.dry, NULL,
          "print each tensor's new type and the total size; write nothing" },
        { "--report", NULL, ARG_FLAG, &f.report, NULL,
          "print the quantization error of each tensor" },
        { "--ppl", NULL, ARG_STR, &f.ppl, "TEXT",
          "measure perplexity on the file TEXT before and after" },
        { "--ctx", "-c", ARG_INT, &f.ctx, "N", "--ppl: tokens per window (512)" },
        { "--chunks", NULL, ARG_INT, &f.chunks, "N", "--ppl: at most N windows (all)" },
        { "--json", NULL, ARG_FLAG, &f.json, NULL, "print the result as JSON on stdout" },
        { "--quiet", "-q", ARG_FLAG, &f.quiet, NULL, "no progress bar" },
        { 0 },
    };
    struct err e = { 0 };
    int n_pos, rc;

    if (args_parse(&verb, table, argc, argv, pos, 3, &n_pos, &helped, &e) != OK)
        return cmd_usage("quantize", &e);
    if (helped) return EXIT_OK;
    if (f.types) return list_types();
    if (fill_options(&f, pos, n_pos, &q, &e) != OK) {
        quantize_release(&q);
        return cmd_usage("quantize", &e);
    }
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    r.dry_run = f.dry;
    rc = quantize_model(&q, &f, &r, &e);
    guard_release(&f.guard);
    if (rc == OK) rc = print_report(&f, &r, &e);
    quantize_release(&q);
    if (rc == E_CANCELLED) return cmd_fail(&e), EXIT_INTERRUPTED;
    return cmd_result(rc, &e);
}
