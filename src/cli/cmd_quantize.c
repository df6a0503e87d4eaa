/* tern quantize: weights rewritten in fewer bits. */
#include "base/file.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/bar.h"
#include "cli/cmd.h"
#include "convert/convert.h"
#include "cli/evalmodel.h"
#include "cli/quantize.h"
#include "quant/rewrite.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct verb verb = {
    "quantize",
    "tern quantize IN OUT.gguf [--type Q4_K_M]",
    "Writes the model IN (a GGUF file, also a split one, or a Hugging Face folder) as the GGUF "
    "file OUT\n"
    "with its matrices in fewer bits; tokenizer, chat template and all other keys go along. OUT "
    "appears\n"
    "whole or not at all, and is read back before this says that it is done. --types lists the "
    "types.\n\n"
    "  tern quantize model-f16.gguf model-q4_k_m.gguf\n"
    "  tern imatrix -m model-f16.gguf -f text.txt -o model.imatrix\n"
    "  tern quantize model-f16.gguf model-iq4_xs.gguf --type IQ4_XS --imatrix model.imatrix\n"
    "  tern quantize folder/ out.gguf --type Q4_K_S --tensor-type 'ffn_down=q6_k' --report",
};

static volatile sig_atomic_t stopped;

static void on_signal(int sig)
{
    (void)sig;
    stopped = 1;
}

static void on_progress(void *arg, const struct rewrite_progress *p)
{
    bar_show(arg, p->done_bytes, p->bytes, p->name);
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
    int ctx, chunks;
    bool dry, json, quiet, types, pure, requantize, report;
};

static int type_flag(const char *flag, const char *value, enum dtype *out, struct err *e)
{
    *out = value ? dtype_by_name(str_c(value)) : DT_NONE;
    if (value && (*out == DT_NONE || !quantize_can(*out)))
        return err_set(e, E_INVALID, "%s: tern writes no type '%s'", flag, value);
    return OK;
}

static int check(const struct quantize_flags *f, const char **pos, int n_pos, struct quantize *q,
                 struct err *e)
{
    const char *type = n_pos == 3 ? pos[2] : f->type;
    int rc;

    if (n_pos < 1 || (n_pos < 2 && !f->dry))
        return err_set(e, E_INVALID, "takes a model and the name of the file to write");
    q->in = pos[0];
    q->out = n_pos > 1 ? pos[1] : "-";
    q->plan_opt.mix = plan_mix_by_name(str_c(type));
    if (!q->plan_opt.mix)
        return err_set(e, E_INVALID, "--type: '%s' is none of those that --types lists", type);
    if (!f->dry && file_is_dir(q->out))
        return err_set(e, E_INVALID, "%s is a folder, expected a file name", q->out);
    if (f->split && !cmd_size(f->split, &q->split_bytes))
        return err_set(e, E_INVALID, "--split-size takes bytes such as 2G or 500M, found '%s'",
                       f->split);
    if ((rc = type_flag("--output-type", f->output, &q->plan_opt.output, e)) != OK) return rc;
    if ((rc = type_flag("--embd-type", f->embd, &q->plan_opt.embd, e)) != OK) return rc;
    for (int i = 0; i < f->rules.n; i++)
        if ((rc = plan_rule_add(&q->plan_opt.rules, f->rules.at[i], e)) != OK) return rc;
    q->imatrix_path = f->imatrix;
    q->plan_opt.pure = f->pure;
    q->plan_opt.requantize = f->requantize;
    q->measure = f->report;
    return OK;
}

static int perplexity(const struct quantize_flags *f, const char *model, int threads, double *out,
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

static int run(struct quantize *q, const struct quantize_flags *f, struct err *e)
{
    struct bar bar;
    int rc;

    if ((rc = quantize_open(q, e)) != OK || f->dry) return rc;
    if (f->ppl && (rc = perplexity(f, q->path, q->n_threads, &q->ppl_before, e)) != OK) return rc;
    bar_begin(&bar, true, f->quiet);
    q->progress = on_progress;
    q->progress_arg = &bar;
    q->stop = &stopped;
    rc = quantize_run(q, e);
    bar_end(&bar);
    if (rc == OK && f->ppl) {
        char *first = rewrite_part_name(q->out, 0, q->result.n_files);
        rc = perplexity(f, first, q->n_threads, &q->ppl_after, e);
        mem_free(first);
    }
    return rc;
}

static int finish(struct quantize *q, const struct quantize_flags *f, int rc, struct err *e)
{
    struct buf out = { 0 };

    if (rc == OK && f->json) quantize_json(q, f->dry, &out);
    else if (rc == OK) quantize_text(q, f->dry, &out);
    if (out.n) fputs(buf_cstr(&out), f->json || f->dry || f->report ? stdout : stderr);
    buf_release(&out);
    quantize_release(q);
    if (rc == E_CANCELLED) return cmd_fail(e), 130;
    return rc == OK ? EXIT_OK : cmd_fail(e);
}

int cmd_quantize(int argc, char **argv)
{
    struct quantize_flags f = { .type = "Q4_K_M", .ctx = 512 };
    struct quantize q = { 0 };
    const char *pos[3] = { 0 };
    bool helped;
    const struct arg table[] = {
        { "--type", NULL, ARG_STR, &f.type, "T", "what to make of it (Q4_K_M)" },
        { "--types", NULL, ARG_FLAG, &f.types, NULL, "list the types and end" },
        { "--imatrix", NULL, ARG_STR, &f.imatrix, "FILE",
          "which columns count more (tern imatrix, or others' files)" },
        { "--tensor-type", NULL, ARG_LIST, &f.rules, "RE=T",
          "tensors whose name fits RE in type T; may be given again" },
        { "--output-type", NULL, ARG_STR, &f.output, "T", "of output.weight" },
        { "--embd-type", NULL, ARG_STR, &f.embd, "T", "of token_embd.weight" },
        { "--pure", NULL, ARG_FLAG, &f.pure, NULL, "every matrix in the one type" },
        { "--requantize", NULL, ARG_FLAG, &f.requantize, NULL,
          "also from quantized tensors, which loses more" },
        { "--split-size", NULL, ARG_STR, &f.split, "SIZE", "files of at most so much: 2G, 500M" },
        { "--threads", "-t", ARG_INT, &q.n_threads, "N", "threads (default: physical cores)" },
        { "--dry-run", NULL, ARG_FLAG, &f.dry, NULL,
          "only say which tensor would become what, and how large it all is" },
        { "--report", NULL, ARG_FLAG, &f.report, NULL, "what was lost, tensor by tensor" },
        { "--ppl", NULL, ARG_STR, &f.ppl, "TEXT", "perplexity of the file TEXT before and after" },
        { "--ctx", "-c", ARG_INT, &f.ctx, "N", "--ppl: tokens of a window (512)" },
        { "--chunks", NULL, ARG_INT, &f.chunks, "N", "--ppl: only the first N windows (all)" },
        { "--json", NULL, ARG_FLAG, &f.json, NULL, "the result as JSON on stdout" },
        { "--quiet", "-q", ARG_FLAG, &f.quiet, NULL, "no progress" },
        { 0 },
    };
    struct err e = { 0 };
    int n_pos, rc;

    if (args_parse(&verb, table, argc, argv, pos, 3, &n_pos, &helped, &e) != OK)
        return cmd_usage("quantize", &e);
    if (helped) return EXIT_OK;
    if (f.types) return list_types();
    if (check(&f, pos, n_pos, &q, &e) != OK) {
        quantize_release(&q);
        return cmd_usage("quantize", &e);
    }
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    rc = run(&q, &f, &e);
    return finish(&q, &f, rc, &e);
}
