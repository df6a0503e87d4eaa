/* tern eval: perplexity, and agreement with golden logits. */
#include "cli/args.h"
#include "cli/cmd.h"
#include "cli/evalmodel.h"

#include <stdio.h>

static const struct verb verb = {
    "eval",
    "tern eval logits DIR | logits -m MODEL --golden FILE | ppl -m MODEL --file F",
    "logits compares with golden.safetensors (input_ids, logits, greedy) of another program: the "
    "worst\n"
    "row's relative error, and how many greedy tokens agree before the first that does not.\n"
    "ppl is the perplexity of a text, cut into windows that are scored alone, each but for its "
    "first token.\n\n"
    "  tern eval logits fixtures/llama --ref\n"
    "  tern eval ppl -m model.gguf --file wiki.txt --ctx 512 --chars 200000",
};

int eval_open(struct eval *v, const struct eval_opt *opt, struct err *e)
{
    struct place_opt o = { .backend = { .device = opt->device,
                                        .n_threads = opt->n_threads,
                                        .reference = opt->reference,
                                        .gpu_layers = opt->gpu_layers },
                           .kv_tokens = (uint64_t)opt->n_ctx,
                           .kv_type = opt->kv_type,
                           .max_tokens = opt->n_ctx,
                           .max_out = opt->n_ctx };
    const char *model = opt->model;
    int rc;
    if ((rc = cmd_model(&model, e)) != OK) return rc;
    if ((rc = source_open(&v->src, model, e)) != OK) return rc;
    return place_model(&v->place, &v->model, &o, v->src, e);
}

int eval_prepare(struct eval *v, const struct eval_opt *opt, struct decoder_opt dec, int n_blocks,
                 struct err *e)
{
    int rc = block_pool_open_over(&v->pool, v->place.shares, v->place.n_shares,
                                  model_kvshape(v->model), opt->kv_type, n_blocks, e);
    return rc == OK ? decoder_open(&v->dec, v->model, v->pool, dec, e) : rc;
}

void eval_release(struct eval *v)
{
    decoder_close(v->dec);
    block_pool_close(v->pool);
    model_close(v->model);
    place_release(&v->place);
    source_close(v->src);
    *v = (struct eval){ 0 };
}

static int check(struct eval_opt *o, const char **pos, int n_pos, bool *ppl, struct err *e)
{
    *ppl = n_pos > 0 && str_is(str_c(pos[0]), "ppl");
    if (!*ppl && (n_pos == 0 || !str_is(str_c(pos[0]), "logits")))
        return err_set(e, E_INVALID, "takes logits or ppl, found '%s'", n_pos ? pos[0] : "nothing");
    if (n_pos == 2 && o->model)
        return err_set(e, E_INVALID, "takes one model, found '%s' and '%s'", pos[1], o->model);
    if (n_pos == 2) o->model = pos[1];
    if (!o->model) o->model = cmd_default_model();
    if (!o->model) return err_set(e, E_INVALID, "takes a model: -m MODEL");
    if (*ppl && !o->file) return err_set(e, E_INVALID, "ppl takes a text: --file F");
    if (o->n_ctx < 2 || o->n_ctx > 1 << 20)
        return err_set(e, E_INVALID, "--ctx takes 2 to 1048576 tokens, found %d", o->n_ctx);
    /* Logits are compared with a library that keeps F32: what the cache rounds off is asked for by
     * name. */
    o->kv_type = o->reference || !*ppl ? DT_F32 : DT_F16;
    if (o->kv_name && cmd_kv_type(&o->kv_type, o->kv_name, e) != OK) return E_INVALID;
    if (o->n_chunks < 0)
        return err_set(e, E_INVALID, "--chunks takes 0 or more, found %d", o->n_chunks);
    return OK;
}

int cmd_eval(int argc, char **argv)
{
    struct eval_opt o = { .n_ctx = 512 };
    const char *pos[2] = { 0 };
    bool helped, ppl;
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &o.model, "MODEL", "a GGUF file or a Hugging Face folder" },
        { "--golden", NULL, ARG_STR, &o.golden, "FILE",
          "logits: where they are (golden.safetensors in the folder)" },
        { "--file", "-f", ARG_STR, &o.file, "F", "ppl: the text" },
        { "--ctx", "-c", ARG_INT, &o.n_ctx, "N", "ppl: tokens of a window (512)" },
        { "--chars", NULL, ARG_U64, &o.n_chars, "N", "ppl: only the first N characters (all)" },
        { "--chunks", NULL, ARG_INT, &o.n_chunks, "N", "ppl: only the first N windows (all)" },
        { "--llama", NULL, ARG_FLAG, &o.llama, NULL,
          "ppl: BOS before each window, only its second half scored" },
        { "--ref", NULL, ARG_FLAG, &o.reference, NULL, "plain C kernels and F32 KV" },
        { "--kv-type", NULL, ARG_STR, &o.kv_name, "T",
          "type of keys and values: f16, q8_0, f8, bf16, f32 (logits: f32; ppl: f16)" },
        { "--device", NULL, ARG_STR, &o.device, "NAME", "where to run: cpu, cuda, cuda:1 (cpu)" },
        { "--gpu-layers", "-ngl", ARG_INT, &o.gpu_layers, "N",
          "a GPU: only the last N layers lie there (as fits)" },
        { "--threads", "-t", ARG_INT, &o.n_threads, "N", "threads (default: physical cores)" },
        { 0 },
    };
    struct buf out = { 0 };
    struct err e = { 0 };
    int n_pos, rc;

    if (args_parse(&verb, table, argc, argv, pos, 2, &n_pos, &helped, &e) != OK)
        return cmd_usage("eval", &e);
    if (helped) return EXIT_OK;
    if (check(&o, pos, n_pos, &ppl, &e) != OK) return cmd_usage("eval", &e);
    rc = ppl ? eval_ppl(&o, &out, &e) : eval_logits(&o, &out, &e);
    if (rc == OK) puts(buf_cstr(&out));
    buf_release(&out);
    return rc == OK ? EXIT_OK : cmd_fail(&e);
}
