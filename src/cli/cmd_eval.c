/* cmd_eval.c - tern eval: perplexity, and agreement with reference logits, vectors and scores. */
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/guard.h"
#include "cli/evalmodel.h"
#include "kernel/backend.h"
#include "model/decoder.h"
#include "model/parallel.h"

#include <stdio.h>

static const struct verb verb = {
    "eval",
    "tern eval logits|embed|rerank DIR | logits -m MODEL --golden FILE | ppl -m MODEL --file F",
    "logits compares the model with golden.safetensors (input_ids, logits, greedy), written by\n"
    "another program: the largest relative error of a row, and the number of greedy tokens that\n"
    "agree before the first that does not. embed and rerank compare the vectors of an encoder and\n"
    "the scores of a reranker in the same way (input_ids.0, embedding.0 or score.0, ...): the "
    "largest\n"
    "relative error of a sequence. ppl computes the perplexity of a text in independent\n"
    "windows; the first token of a window is not scored.\n\n"
    "examples:\n"
    "  tern eval logits fixtures/llama --ref\n"
    "  tern eval ppl -m model.gguf --file wiki.txt --ctx 512 --chars 200000",
};

/* A bidirectional model has hidden states or classes, but no logits. */
int evalmodel_open(struct evalmodel *v, const struct eval_opt *opt, struct err *e)
{
    const char *model = opt->model;
    int rc;

    if ((rc = cmd_model(&model, e)) != OK) return rc;
    if ((rc = loadplan_read(&v->plan, model, e)) != OK) return rc;
    if (v->vectors || (!v->plan->facts.bidirectional && v->plan->facts.task == TASK_GENERATE))
        return OK;
    return err_set(e, E_UNSUPPORTED, "%s: a model with the task %s has no logits", model,
                   model_task_name(v->plan->facts.task));
}

/* The plan places the layers on the devices so that KV cache and batches of this shape fit, too. */
int evalmodel_prepare(struct evalmodel *v, const struct eval_opt *opt, struct eval_shape shape,
                      struct err *e)
{
    struct load_opt o = { .backend = { .device = opt->device,
                                       .n_threads = opt->n_threads,
                                       .reference = opt->reference,
                                       .isa = opt->isa,
                                       .numa = opt->numa,
                                       .gpu_layers = opt->gpu_layers,
                                       .cpu_moe = opt->experts.cpu_moe,
                                       .n_cpu_moe = opt->experts.n_cpu_moe,
                                       .place = opt->experts.place },
                          .n_ctx = shape.n_blocks * KV_BLOCK,
                          .kv_tokens = shape.n_seqs * shape.n_blocks * KV_BLOCK,
                          .max_batch = shape.max_tokens,
                          .max_seqs = shape.n_seqs,
                          .max_out = shape.max_tokens,
                          .kv_type = opt->kv_type,
                          .no_prefix = true,
                          .allow_nan = opt->allow_nan };
    int rc;

    if (opt->gang.tp && (rc = gangflags_open(&opt->gang, &o, e)) != OK) return rc;
    if ((rc = loadplan_make(v->plan, &o, e)) != OK) return rc;
    if ((rc = runner_open(&v->runner, v->plan, e)) != OK) return rc;
    v->model = decoder_model(parallel_local(v->runner));
    return block_pool_open(&v->pool, v->runner->lim.n_blocks, e);
}

int evalmodel_check(const struct evalmodel *v, struct err *e)
{
    return source_is_damaged(v->plan->source, e) ? E_DAMAGED : OK;
}

void evalmodel_release(struct evalmodel *v)
{
    runner_close(v->runner);
    block_pool_close(v->pool);
    loadplan_close(v->plan);
    *v = (struct evalmodel){ 0 };
}

enum what { WHAT_LOGITS, WHAT_PPL, WHAT_EMBED, WHAT_RERANK };

static bool find_what(const char *name, enum what *out)
{
    static const char *const names[] = { "logits", "ppl", "embed", "rerank" };

    for (int i = 0; i < 4; i++)
        if (str_is(str_c(name), names[i])) return *out = (enum what)i, true;
    return false;
}

static int fill_options(struct eval_opt *o, const char **pos, int n_pos, enum what *what,
                        struct err *e)
{
    struct cmd_device d = { o->device, o->isa, o->numa, o->gpu_layers, false, o->experts };

    bool ppl;

    if (n_pos == 0 || !find_what(pos[0], what))
        return err_set(e, E_INVALID, "the first argument must be logits, ppl, embed or rerank%s%s",
                       n_pos ? ", not " : "", n_pos ? pos[0] : "");
    if (n_pos == 2 && o->model)
        return err_set(e, E_INVALID, "two models: '%s' and '%s'; give one", pos[1], o->model);
    if (n_pos == 2) o->model = pos[1];
    if (cmd_need_model(&o->model, e) != OK) return E_INVALID;
    ppl = *what == WHAT_PPL;
    if (ppl && !o->file) return err_set(e, E_INVALID, "ppl needs a text: --file F");
    if (o->n_ctx < 2 || o->n_ctx > 1 << 20)
        return err_set(e, E_INVALID, "--ctx %d: must be 2 to 1048576", o->n_ctx);
    /* The reference logits come from an F32 KV cache: rounding in the cache must be asked for. */
    o->kv_type = o->reference || !ppl ? DT_F32 : DT_F16;
    if (o->kv_name && cmd_kv_type(&o->kv_type, o->kv_name, e) != OK) return E_INVALID;
    if (cmd_check_device(&d, e) != OK) return E_INVALID;
    o->device = d.device;
    o->gpu_layers = d.gpu_layers;
    if (o->n_chunks < 0)
        return err_set(e, E_INVALID, "--chunks %d: must be 0 or more", o->n_chunks);
    return OK;
}

int cmd_eval(int argc, char **argv)
{
    struct eval_opt o = { .n_ctx = 512,
                          .gpu_layers = CMD_GPU_LAYERS_FIT,
                          .gang = GANGFLAGS_DEFAULT };
    struct guard guard = { 0 };
    const char *pos[2] = { 0 };
    bool helped;
    enum what what = WHAT_LOGITS;
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &o.model, "MODEL",
          "GGUF file or Hugging Face folder (the model that ships with tern)" },
        { "--golden", NULL, ARG_STR, &o.golden, "FILE",
          "logits: the reference (golden.safetensors in the folder)" },
        { "--file", "-f", ARG_STR, &o.file, "F", "ppl: the text" },
        { "--ctx", "-c", ARG_INT, &o.n_ctx, "N", "ppl: tokens per window (512)" },
        { "--chars", NULL, ARG_U64, &o.n_chars, "N",
          "ppl: at most N characters of the text (all)" },
        { "--chunks", NULL, ARG_INT, &o.n_chunks, "N", "ppl: at most N windows (all)" },
        { "--llama", NULL, ARG_FLAG, &o.llama, NULL,
          "ppl: score as llama-perplexity: BOS first, second half only" },
        { "--ref", NULL, ARG_FLAG, &o.reference, NULL, "plain C kernels and an F32 KV cache" },
        { "--kv-type", NULL, ARG_STR, &o.kv_name, "T",
          "KV cache type: f16, q8_0, f8, bf16, f32 (logits: f32; ppl: f16)" },
        { "--device", NULL, ARG_STR, &o.device, "NAME", "device: cpu, cuda, cuda:1 (cpu)" },
        { "--isa", NULL, ARG_STR, &o.isa, "NAME",
          "CPU kernels: ref, avx2, avxvnni, avx512, amx, neon (the best of this machine)" },
        { "--numa", NULL, ARG_STR, &o.numa, "MODE",
          "memory nodes of the CPU: auto, off, spread, or the number of one (auto)" },
        { "--gpu-layers", "-ngl", ARG_INT, &o.gpu_layers, "N",
          "GPU: run the last N layers there, 0: none; -1: as many as fit (-1)" },
        CMD_EXPERTS_ARGS(&o.experts),
        { "--allow-nan", NULL, ARG_FLAG, &o.allow_nan, NULL,
          "use a model whose weights contain NaN or infinity" },
        GANG_ARGS(&o.gang),
        GUARD_KEY_ARGS(&guard),
        { "--threads", "-t", ARG_INT, &o.n_threads, "N", "threads (physical cores)" },
        { 0 },
    };
    struct buf out = { 0 };
    struct err e = { 0 };
    int n_pos, code, rc;

    if (args_parse(&verb, table, argc, argv, pos, 2, &n_pos, &helped, &e) != OK)
        return cmd_usage("eval", &e);
    if (helped) return EXIT_OK;
    if (fill_options(&o, pos, n_pos, &what, &e) != OK ||
        gangflags_check(&o.gang, o.device, &e) != OK)
        return cmd_usage("eval", &e);
    if (gangflags_mpi(&o.gang, argc, argv, &code)) return code;
    rc = cmd_model(&o.model, &e); /* golden.safetensors is in the folder that a name means */
    if (rc == OK) rc = guard_join(&guard, &e);
    if (rc == OK)
        rc = what == WHAT_PPL      ? eval_ppl(&o, &out, &e)
             : what == WHAT_LOGITS ? eval_logits(&o, &out, &e)
                                   : eval_vectors(&o, what == WHAT_RERANK, &out, &e);
    guard_release(&guard);
    if (rc == OK) rc = cli_write(stdout, &out, &e);
    buf_release(&out);
    return cmd_result(rc, &e);
}
