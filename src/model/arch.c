#include "model/arch.h"

#include "model/model.h"

#include <stddef.h>
#include <stdio.h>

#define M(member) offsetof(struct model, member)
#define L(member) offsetof(struct layer, member)
#define END { 0 }

static const struct tensor_row rows_ends[] = {
    { "token_embd.weight", "embed_tokens.weight", ROW_MAT, ROW_FIRST, M(embd), DIM_VOCAB, DIM_EMBD },
    { "output_norm.weight", "norm.weight", ROW_VEC, ROW_NORM, M(out_norm), DIM_EMBD, DIM_NONE },
    { "output.weight", "lm_head.weight", ROW_MAT, ROW_HEAD, M(head), DIM_VOCAB, DIM_EMBD },
    { "output.bias", "lm_head.bias", ROW_VEC, ROW_HEAD | ROW_OPTIONAL, M(head_b), DIM_VOCAB,
      DIM_NONE },
    END
};

static const struct tensor_row rows_attn[] = {
    { "blk.*.attn_q.weight", "layers.*.self_attn.q_proj.weight", ROW_MAT, ROW_PERM_Q, L(wq), DIM_Q,
      DIM_EMBD },
    { "blk.*.attn_k.weight", "layers.*.self_attn.k_proj.weight", ROW_MAT, ROW_PERM_K, L(wk), DIM_K,
      DIM_EMBD },
    { "blk.*.attn_v.weight", "layers.*.self_attn.v_proj.weight", ROW_MAT, 0, L(wv), DIM_V,
      DIM_EMBD },
    { "blk.*.attn_output.weight", "layers.*.self_attn.o_proj.weight", ROW_MAT, 0, L(wo), DIM_EMBD,
      DIM_O },
    { "blk.*.attn_q.bias", "layers.*.self_attn.q_proj.bias", ROW_VEC,
      ROW_ATTN_BIAS | ROW_QKV_BIAS | ROW_PERM_Q, L(bq), DIM_Q, DIM_NONE },
    { "blk.*.attn_k.bias", "layers.*.self_attn.k_proj.bias", ROW_VEC,
      ROW_ATTN_BIAS | ROW_QKV_BIAS | ROW_PERM_K, L(bk), DIM_K, DIM_NONE },
    { "blk.*.attn_v.bias", "layers.*.self_attn.v_proj.bias", ROW_VEC, ROW_ATTN_BIAS | ROW_QKV_BIAS,
      L(bv), DIM_V, DIM_NONE },
    { "blk.*.attn_output.bias", "layers.*.self_attn.o_proj.bias", ROW_VEC,
      ROW_ATTN_BIAS | ROW_RESIDUAL, L(bo), DIM_EMBD, DIM_NONE },
    END
};

static const struct tensor_row rows_attn_packed[] = {
    { "blk.*.attn_qkv.weight", "layers.*.self_attn.qkv_proj.weight", ROW_QKV, 0, L(wq), DIM_QKV,
      DIM_EMBD },
    { "blk.*.attn_output.weight", "layers.*.self_attn.o_proj.weight", ROW_MAT, 0, L(wo), DIM_EMBD,
      DIM_O },
    END
};

static const struct tensor_row rows_mlp[] = {
    { "blk.*.ffn_gate.weight", "layers.*.mlp.gate_proj.weight", ROW_MAT, 0, L(gate), DIM_FF,
      DIM_EMBD },
    { "blk.*.ffn_up.weight", "layers.*.mlp.up_proj.weight", ROW_MAT, 0, L(up), DIM_FF, DIM_EMBD },
    { "blk.*.ffn_down.weight", "layers.*.mlp.down_proj.weight", ROW_MAT, 0, L(down), DIM_EMBD,
      DIM_FF },
    { "blk.*.ffn_gate.bias", "layers.*.mlp.gate_proj.bias", ROW_VEC, ROW_MLP_BIAS, L(b_gate),
      DIM_FF, DIM_NONE },
    { "blk.*.ffn_up.bias", "layers.*.mlp.up_proj.bias", ROW_VEC, ROW_MLP_BIAS, L(b_up), DIM_FF,
      DIM_NONE },
    { "blk.*.ffn_down.bias", "layers.*.mlp.down_proj.bias", ROW_VEC, ROW_MLP_BIAS | ROW_RESIDUAL,
      L(b_down), DIM_EMBD, DIM_NONE },
    END
};

static const struct tensor_row rows_mlp_packed[] = {
    { "blk.*.ffn_up.weight", "layers.*.mlp.gate_up_proj.weight", ROW_GATE_UP, 0, L(gate), DIM_2FF,
      DIM_EMBD },
    { "blk.*.ffn_down.weight", "layers.*.mlp.down_proj.weight", ROW_MAT, 0, L(down), DIM_EMBD,
      DIM_FF },
    END
};

static const struct tensor_row rows_norm_before[] = {
    { "blk.*.attn_norm.weight", "layers.*.input_layernorm.weight", ROW_VEC, ROW_NORM, L(attn_norm),
      DIM_EMBD, DIM_NONE },
    { "blk.*.ffn_norm.weight", "layers.*.post_attention_layernorm.weight", ROW_VEC, ROW_NORM,
      L(ffn_norm), DIM_EMBD, DIM_NONE },
    END
};

static const struct tensor_row rows_norm_after[] = {
    { "blk.*.post_attention_norm.weight", "layers.*.post_attention_layernorm.weight", ROW_VEC,
      ROW_NORM, L(attn_post_norm), DIM_EMBD, DIM_NONE },
    { "blk.*.post_ffw_norm.weight", "layers.*.post_feedforward_layernorm.weight", ROW_VEC, ROW_NORM,
      L(ffn_post_norm), DIM_EMBD, DIM_NONE },
    END
};

static const struct tensor_row
    rows_norm_around[] = { /* beside rows_norm_after */
                           { "blk.*.attn_norm.weight", "layers.*.input_layernorm.weight", ROW_VEC,
                             ROW_NORM, L(attn_norm), DIM_EMBD, DIM_NONE },
                           { "blk.*.ffn_norm.weight", "layers.*.pre_feedforward_layernorm.weight",
                             ROW_VEC, ROW_NORM, L(ffn_norm), DIM_EMBD, DIM_NONE },
                           END
    };

static const struct tensor_row rows_qk_norm[] = {
    { "blk.*.attn_q_norm.weight", "layers.*.self_attn.q_norm.weight", ROW_VEC, ROW_NORM, L(q_norm),
      DIM_HEAD, DIM_NONE },
    { "blk.*.attn_k_norm.weight", "layers.*.self_attn.k_norm.weight", ROW_VEC, ROW_NORM, L(k_norm),
      DIM_HEAD, DIM_NONE },
    END
};

static const struct tensor_row rows_qk_norm_whole[] = {
    { "blk.*.attn_q_norm.weight", "layers.*.self_attn.q_norm.weight", ROW_VEC, ROW_NORM, L(q_norm),
      DIM_Q, DIM_NONE },
    { "blk.*.attn_k_norm.weight", "layers.*.self_attn.k_norm.weight", ROW_VEC, ROW_NORM, L(k_norm),
      DIM_K, DIM_NONE },
    END
};

static const struct tensor_row rows_sub_norm[] = {
    { "blk.*.attn_sub_norm.weight", "layers.*.self_attn.attn_sub_norm.weight", ROW_VEC, ROW_NORM,
      L(attn_sub_norm), DIM_O, DIM_NONE },
    { "blk.*.ffn_sub_norm.weight", "layers.*.mlp.ffn_sub_norm.weight", ROW_VEC, ROW_NORM,
      L(ffn_sub_norm), DIM_FF, DIM_NONE },
    END
};

static const struct tensor_row rows_scale[] = {
    { "blk.*.attn_q.scale", NULL, ROW_SCALE, ROW_OPTIONAL, L(s_q), DIM_ONE, DIM_NONE },
    { "blk.*.attn_k.scale", NULL, ROW_SCALE, ROW_OPTIONAL, L(s_k), DIM_ONE, DIM_NONE },
    { "blk.*.attn_v.scale", NULL, ROW_SCALE, ROW_OPTIONAL, L(s_v), DIM_ONE, DIM_NONE },
    { "blk.*.attn_output.scale", NULL, ROW_SCALE, ROW_OPTIONAL, L(s_o), DIM_ONE, DIM_NONE },
    { "blk.*.ffn_gate.scale", NULL, ROW_SCALE, ROW_OPTIONAL, L(s_gate), DIM_ONE, DIM_NONE },
    { "blk.*.ffn_up.scale", NULL, ROW_SCALE, ROW_OPTIONAL, L(s_up), DIM_ONE, DIM_NONE },
    { "blk.*.ffn_down.scale", NULL, ROW_SCALE, ROW_OPTIONAL, L(s_down), DIM_ONE, DIM_NONE },
    END
};

#define ROWS(...) ((const struct tensor_row *const[]){ rows_ends, __VA_ARGS__, NULL })

/* Several Hugging Face names may share one GGUF name; the first of them reads such GGUF files. */
static const struct arch archs[] = {
    { .gguf = "llama",
      .hf = { "llama" },
      .gguf_rope = ROPE_PAIR,
      .rows = ROWS(rows_attn, rows_mlp, rows_norm_before),
      .eps = 1e-6,
      .theta = 10000,
      .n_ctx = 2048,
      .act = ACT_SILU,
      .act_key = "hidden_act" },
    { .gguf = "llama",
      .hf = { "mistral" },
      .gguf_rope = ROPE_PAIR,
      .flags = ARCH_WINDOW,
      .rows = ROWS(rows_attn, rows_mlp, rows_norm_before),
      .eps = 1e-6,
      .theta = 10000,
      .n_ctx = 131072,
      .window = 4096,
      .act = ACT_SILU,
      .act_key = "hidden_act" },
    { .gguf = "llama",
      .hf = { "ministral" },
      .gguf_rope = ROPE_PAIR,
      .flags = ARCH_WINDOW | ARCH_LAYER_TYPES,
      .rows = ROWS(rows_attn, rows_mlp, rows_norm_before),
      .eps = 1e-6,
      .theta = 10000,
      .n_ctx = 131072,
      .window = 4096,
      .act = ACT_SILU,
      .act_key = "hidden_act" },
    { .gguf = "qwen2",
      .hf = { "qwen2" },
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_LAYER_TYPES | ARCH_USE_WINDOW | ARCH_QKV_BIAS,
      .rows = ROWS(rows_attn, rows_mlp, rows_norm_before),
      .eps = 1e-6,
      .theta = 10000,
      .n_ctx = 32768,
      .window = 4096,
      .act = ACT_SILU,
      .act_key = "hidden_act" },
    { .gguf = "qwen3",
      .hf = { "qwen3" },
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_LAYER_TYPES | ARCH_USE_WINDOW,
      .rows = ROWS(rows_attn, rows_mlp, rows_norm_before, rows_qk_norm),
      .eps = 1e-6,
      .theta = 10000,
      .n_ctx = 32768,
      .window = 4096,
      .act = ACT_SILU,
      .act_key = "hidden_act" },
    { .gguf = "phi3",
      .hf = { "phi3" },
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_WINDOW | ARCH_PARTIAL_ROPE | ARCH_LONGROPE,
      .rows = ROWS(rows_attn_packed, rows_mlp_packed, rows_norm_before),
      .eps = 1e-5,
      .theta = 10000,
      .n_ctx = 4096,
      .orig_ctx = 4096,
      .act = ACT_SILU,
      .act_key = "hidden_act" },
    { .gguf = "gemma",
      .hf = { "gemma" },
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_NORM1 | ARCH_EMBD_SQRT,
      .rows = ROWS(rows_attn, rows_mlp, rows_norm_before),
      .eps = 1e-6,
      .theta = 10000,
      .n_ctx = 8192,
      .act = ACT_GELU_TANH,
      .act_key = "hidden_act",
      .tied = true },
    { .gguf = "gemma2",
      .hf = { "gemma2" },
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_NORM1 | ARCH_EMBD_SQRT | ARCH_LAYER_TYPES | ARCH_QUERY_SCALAR | ARCH_ATTN_CAP |
               ARCH_LOGIT_CAP,
      .rows = ROWS(rows_attn, rows_mlp, rows_norm_around, rows_norm_after),
      .eps = 1e-6,
      .theta = 10000,
      .n_ctx = 8192,
      .window = 4096,
      .window_every = 2,
      .attn_cap = 50,
      .logit_cap = 30,
      .act = ACT_GELU_TANH,
      .act_key = "hidden_activation",
      .tied = true,
      .gguf_wide = 46 },
    { .gguf = "gemma3",
      .hf = { "gemma3_text", "gemma3" },
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_NORM1 | ARCH_EMBD_SQRT | ARCH_LAYER_TYPES | ARCH_QUERY_SCALAR | ARCH_TWO_ROPES |
               ARCH_LOGIT_CAP,
      .rows = ROWS(rows_attn, rows_mlp, rows_norm_around, rows_norm_after, rows_qk_norm),
      .eps = 1e-6,
      .theta = 1000000,
      .theta_window = 10000,
      .n_ctx = 131072,
      .window = 4096,
      .window_every = 6,
      .act = ACT_GELU_TANH,
      .act_key = "hidden_activation",
      .tied = true,
      .gguf_wide = 62 },
    { .gguf = "granite",
      .hf = { "granite" },
      .gguf_rope = ROPE_PAIR,
      .flags = ARCH_MULTIPLIERS,
      .rows = ROWS(rows_attn, rows_mlp, rows_norm_before),
      .eps = 1e-6,
      .theta = 10000,
      .n_ctx = 2048,
      .act = ACT_SILU,
      .act_key = "hidden_act" },
    { .gguf = "olmo2",
      .hf = { "olmo2" },
      .gguf_rope = ROPE_HALF,
      .flags = ARCH_QK_WHOLE,
      .rows = ROWS(rows_attn, rows_mlp, rows_norm_after, rows_qk_norm_whole),
      .eps = 1e-5,
      .theta = 10000,
      .n_ctx = 2048,
      .act = ACT_SILU,
      .act_key = "hidden_act" },
    { .gguf = "smollm3",
      .hf = { "smollm3" },
      .gguf_rope = ROPE_PAIR,
      .flags = ARCH_LAYER_TYPES | ARCH_USE_WINDOW | ARCH_USE_RULE | ARCH_NO_ROPE,
      .rows = ROWS(rows_attn, rows_mlp, rows_norm_before),
      .eps = 1e-6,
      .theta = 2000000,
      .n_ctx = 32768,
      .act = ACT_SILU,
      .act_key = "hidden_act",
      .tied = true },
    { .gguf = "bitnet",
      .hf = { "bitnet" },
      .gguf_rope = ROPE_HALF,
      .rows = ROWS(rows_attn, rows_mlp, rows_norm_before, rows_sub_norm, rows_scale),
      .eps = 1e-5,
      .theta = 500000,
      .n_ctx = 2048,
      .act = ACT_RELU2,
      .act_key = "hidden_act",
      .gguf_silu = true },
};
#define N_ARCHS (sizeof archs / sizeof archs[0])

const struct arch *arch_by_gguf(struct str name)
{
    for (size_t i = 0; i < N_ARCHS; i++)
        if (str_is(name, archs[i].gguf)) return &archs[i];
    return NULL;
}

const struct arch *arch_by_hf(struct str model_type)
{
    for (size_t i = 0; i < N_ARCHS; i++)
        for (int k = 0; k < 3 && archs[i].hf[k]; k++)
            if (str_is(model_type, archs[i].hf[k])) return &archs[i];
    return NULL;
}

const char *arch_list(bool hf)
{
    static char lists[2][256];
    const char *last = "";
    if (lists[hf][0]) return lists[hf];
    for (size_t i = 0; i < N_ARCHS; i++) {
        const char *name = hf ? archs[i].hf[0] : archs[i].gguf;
        size_t n = strlen(lists[hf]);
        if (strcmp(name, last) != 0)
            snprintf(lists[hf] + n, sizeof lists[hf] - n, "%s%s", n ? ", " : "", name);
        last = name;
    }
    return lists[hf];
}

const struct tensor_row *arch_row(const struct arch *a, int *it)
{
    int n = (*it)++;
    for (const struct tensor_row *const *t = a->rows; *t; t++)
        for (const struct tensor_row *r = *t; r->gguf || r->hf; r++)
            if (n-- == 0) return r;
    return NULL;
}

static const struct {
    const char *name;
    enum act act;
} acts[] = {
    { "silu", ACT_SILU },           { "swish", ACT_SILU },
    { "gelu", ACT_GELU },           { "gelu_python", ACT_GELU },
    { "gelu_pytorch_tanh", ACT_GELU_TANH }, { "gelu_new", ACT_GELU_TANH },
    { "gelu_fast", ACT_GELU_TANH }, { "gelu_accurate", ACT_GELU_TANH },
    { "gelu_python_tanh", ACT_GELU_TANH },
    { "relu", ACT_RELU },           { "relu2", ACT_RELU2 },
    { "quick_gelu", ACT_GELU_QUICK },
};

bool act_by_name(struct str name, enum act *out)
{
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        if (str_is(name, acts[i].name)) {
            *out = acts[i].act;
            return true;
        }
    return false;
}

const char *act_name(enum act a)
{
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        if (acts[i].act == a) return acts[i].name;
    return "silu";
}
