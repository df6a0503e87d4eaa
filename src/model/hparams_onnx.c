/* hparams_onnx.c - an ONNX model's hyper-parameters: what its card says. */
#include "model/hparams.h"
#include "onnx/card.h"

int hparams_from_onnx(struct hparams *hp, struct arena *a, const struct source *src, struct err *e)
{
    static const enum pooling pools[] = { [CARD_NONE] = POOL_LAST,
                                          [CARD_MEAN] = POOL_MEAN,
                                          [CARD_CLS] = POOL_CLS,
                                          [CARD_LAST] = POOL_LAST };
    static const struct tensor_row *const no_rows[] = { NULL };
    static const struct arch arch = {
        .gguf = "onnx", .hf = { "onnx" }, .encoder = true, .rows = no_rows
    };
    struct onnx *m = NULL;
    struct card *c = arena_new(a, struct card);
    int rc = onnx_open(&m, source_onnx(src), e);

    if (rc == OK) rc = card_read(c, a, src, m, e);
    onnx_close(m);
    if (rc != OK) return rc;
    *hp = (struct hparams){ .arch = "onnx",
                            .info = &arch,
                            .from = SOURCE_HF,
                            .n_layers = 1,
                            .n_embd = c->width,
                            .n_word = c->width,
                            .n_vocab = c->n_vocab,
                            .n_ctx = c->n_ctx,
                            .encoder = true,
                            .tied = true,
                            .pooling = pools[c->pool],
                            .card = c,
                            .embd_scale = 1,
                            .residual_scale = 1,
                            .logit_scale = 1,
                            .alibi_scale = 1,
                            .moe = { .scale = 1 } };
    hp->layers = arena_array(a, 1, sizeof *hp->layers);
    hp->layers[0].rope = -1;
    return OK;
}
