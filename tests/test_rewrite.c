/* Quantizing a model file: the plan (which tensor gets which type), the rewritten file, split
 * output, refusal of NaN, and stopping without leaving files.
 *
 * The input is a small random GGUF model that the test writes, and the model that ships with
 * tern. */
#include "quant/rewrite.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "format/gguf.h"
#include "format/ggufw.h"
#include "kernel/quant.h"
#include "quant/rtn.h"
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum { LAYERS = 16 };

struct world {
    struct source *src;
    struct arena arena;
    struct plan plan;
    struct plan_opt opt;
};

static void add_tensor(struct ggufw *w, const char *name, int64_t rows, int64_t cols)
{
    ggufw_tensor(w, name, DT_F32, (int64_t[]){ rows, cols }, 2);
}

static void add_data(struct ggufw *w, struct rng *r, int64_t n, float bad)
{
    for (int64_t i = 0; i < n; i++) {
        float x = i == 700 && bad != 0 ? bad : 0.1f * rng_normal(r);
        ggufw_data(w, &x, 4);
    }
}

/* Writes a small GGUF model of 16 layers with whole super-blocks. bad: a value that is placed in
 * the middle of one tensor. */
static char *write_model(bool tied, float bad)
{
    char *path = path_join(temp_dir(), tied ? "tied.gguf" : "in.gguf"), name[64];
    static const char *const parts[] = { "attn_q", "attn_v", "attn_output", "ffn_up", "ffn_down" };
    struct ggufw *w;
    struct rng r;

    rng_seed(&r, 1);
    assert_int_equal(ggufw_open(&w, path, NULL), OK);
    ggufw_str(w, "general.architecture", STR("llama"));
    ggufw_u32(w, "general.file_type", 0);
    ggufw_u32(w, "general.alignment", 32);
    ggufw_u32(w, "llama.attention.head_count", 8);
    ggufw_u32(w, "llama.attention.head_count_kv", 4);
    ggufw_str(w, "some.other.key", STR("stays"));
    add_tensor(w, "token_embd.weight", 4, 256);
    for (int l = 0; l < LAYERS; l++)
        for (size_t k = 0; k < 5; k++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, parts[k]);
            add_tensor(w, name, 4, k == 3 ? 96 : 256);
        }
    ggufw_tensor(w, "output_norm.weight", DT_F32, (int64_t[]){ 256 }, 1);
    if (!tied) add_tensor(w, "output.weight", 4, 256);
    add_data(w, &r, 1024, 0);
    for (int l = 0; l < LAYERS; l++)
        for (size_t k = 0; k < 5; k++)
            add_data(w, &r, 4 * (k == 3 ? 96 : 256), l == 3 && k == 4 ? bad : 0);
    add_data(w, &r, 256, 0);
    if (!tied) add_data(w, &r, 1024, 0);
    assert_int_equal(ggufw_close(w, NULL), OK);
    return path;
}

static void open_world(struct world *v, char *path, const char *mix)
{
    struct err e = { 0 };
    *v = (struct world){
        .opt = { .mix = plan_mix_by_name(str_c(mix)), .output = DT_NONE, .embd = DT_NONE }
    };
    assert_non_null(v->opt.mix);
    if (source_open(&v->src, path, &e) != OK) fail_msg("%s", e.msg);
    mem_free(path);
}

static void plan_world(struct world *v)
{
    struct err e = { 0 };
    if (plan_gguf(&v->plan, &v->arena, v->src, &v->opt, &e) != OK) fail_msg("%s", e.msg);
}

static void close_world(struct world *v)
{
    plan_rules_free(v->opt.rules);
    arena_release(&v->arena);
    source_close(v->src);
}

static enum dtype type_of(const struct world *v, const char *name)
{
    for (int i = 0; i < v->plan.n; i++)
        if (str_is(v->plan.items[i].from->name, name)) return v->plan.items[i].type;
    fail_msg("no %s", name);
    return DT_NONE;
}

/* ---- the plan ---- */

static void q4_k_m_gives_more_bits_to_the_sensitive_layers(void **state)
{
    (void)state;
    struct world v;
    char name[64];
    open_world(&v, write_model(false, 0), "q4_k_m");
    plan_world(&v);
    for (int l = 0; l < LAYERS; l++) {
        bool more = l < 2 || l >= 14 || (l - 2) % 3 == 2;
        snprintf(name, sizeof name, "blk.%d.attn_v.weight", l);
        assert_int_equal(type_of(&v, name), more ? DT_Q6_K : DT_Q4_K);
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", l);
        assert_int_equal(type_of(&v, name), more ? DT_Q6_K : DT_Q4_K);
        snprintf(name, sizeof name, "blk.%d.attn_q.weight", l);
        assert_int_equal(type_of(&v, name), DT_Q4_K);
        snprintf(name, sizeof name, "blk.%d.ffn_up.weight", l);
        assert_int_equal(type_of(&v, name), DT_Q5_0); /* rows of 96 are no multiple of 256 */
    }
    assert_int_equal(type_of(&v, "output.weight"), DT_Q6_K);
    assert_int_equal(type_of(&v, "token_embd.weight"), DT_Q4_K);
    assert_int_equal(type_of(&v, "output_norm.weight"), DT_F32);
    close_world(&v);
}

static void a_tied_embedding_is_quantized_like_an_output_head(void **state)
{
    (void)state;
    struct world v;
    open_world(&v, write_model(true, 0), "Q3_K_S");
    plan_world(&v);
    assert_int_equal(type_of(&v, "token_embd.weight"), DT_Q6_K);
    assert_int_equal(type_of(&v, "blk.0.ffn_up.weight"), DT_IQ4_NL);
    close_world(&v);
}

static void patterns_override_the_mix(void **state)
{
    (void)state;
    struct world v;
    struct err e = { 0 };
    open_world(&v, write_model(false, 0), "Q4_K_S");
    assert_int_equal(plan_rule_add(&v.opt.rules, "^blk\\.(1|2)\\.ffn_down=q8_0", &e), OK);
    assert_int_equal(plan_rule_add(&v.opt.rules, "ffn_down=q5_k", &e), OK);
    plan_world(&v);
    assert_int_equal(type_of(&v, "blk.1.ffn_down.weight"), DT_Q8_0);
    assert_int_equal(type_of(&v, "blk.3.ffn_down.weight"), DT_Q5_K);
    assert_int_equal(plan_rule_add(&v.opt.rules, "ffn_(=q8_0", &e), E_INVALID);
    assert_int_equal(plan_rule_add(&v.opt.rules, "ffn_up=iq2_xxs", &e), E_INVALID);
    assert_int_equal(plan_rule_add(&v.opt.rules, "ffn_up", &e), E_INVALID);
    close_world(&v);
}

static void every_mix_has_a_plan(void **state)
{
    (void)state;
    uint64_t q2 = 0, q8 = 0;
    for (int i = 0; plan_mix_at(i); i++) {
        struct world v;
        open_world(&v, write_model(false, 0), plan_mix_at(i)->name);
        plan_world(&v);
        for (int k = 0; k < v.plan.n; k++) assert_true(rtn_can(v.plan.items[k].type));
        if (strcmp(plan_mix_at(i)->name, "Q2_K_S") == 0) q2 = v.plan.bytes;
        if (strcmp(plan_mix_at(i)->name, "Q8_0") == 0) q8 = v.plan.bytes;
        close_world(&v);
    }
    assert_true(q2 > 0 && q2 < q8 * 2 / 3);
}

/* ---- the file ---- */

static int rewrite_model(struct world *v, const char *dst, uint64_t split, struct rewrite_result *r,
                         struct err *e)
{
    struct rewrite_opt o = { .src = v->src,
                             .dst = dst,
                             .plan = &v->plan,
                             .mix = v->opt.mix,
                             .n_threads = 2,
                             .split_bytes = split,
                             .measure = true };
    return rewrite_run(&o, r, e);
}

static void the_file_has_the_planned_types_and_close_values(void **state)
{
    (void)state;
    struct world v;
    struct rewrite_result r;
    struct err e = { 0 };
    struct source *out = NULL;
    struct str text;
    uint64_t u;
    char *dst = path_join(temp_dir(), "out.gguf");

    open_world(&v, write_model(false, 0), "Q4_K_M");
    plan_world(&v);
    if (rewrite_model(&v, dst, 0, &r, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(r.n_files, 1);
    if (source_open(&out, dst, &e) != OK) fail_msg("%s", e.msg);
    assert_true(source_u64(out, "general.file_type", &u) && u == 15);
    assert_true(source_str(out, "some.other.key", &text) && str_is(text, "stays"));
    for (int i = 0; i < v.plan.n; i++) {
        const struct plan_item *it = &v.plan.items[i];
        double rel = sqrt(r.loss[i].error / (r.loss[i].square + 1e-30));
        if (it->type == DT_F32) assert_true(rel == 0);
        else if (!(rel > 0 && rel < 0.1))
            fail_msg("%.*s: relative error %g", STR_ARG(it->from->name), rel);
    }
    source_close(out);
    mem_free(r.loss);
    close_world(&v);
    mem_free(dst);
}

static void a_split_file_opens_as_one_model(void **state)
{
    (void)state;
    struct world v;
    struct rewrite_result r;
    struct err e = { 0 };
    struct source *out = NULL;
    char *dst = path_join(temp_dir(), "split.gguf"), *first;

    open_world(&v, write_model(false, 0), "Q8_0");
    plan_world(&v);
    if (rewrite_model(&v, dst, 20000, &r, &e) != OK) fail_msg("%s", e.msg);
    assert_true(r.n_files > 2);
    first = rewrite_part_name(dst, 0, r.n_files);
    assert_non_null(strstr(first, "split-00001-of-"));
    if (source_open(&out, first, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(source_n_tensors(out), source_n_tensors(v.src));
    source_close(out);
    mem_free(first);
    mem_free(r.loss);
    close_world(&v);
    mem_free(dst);
}

static void nan_weights_are_refused_naming_the_tensor(void **state)
{
    (void)state;
    static const float bad[] = { NAN, INFINITY };
    for (size_t i = 0; i < 2; i++) {
        struct world v;
        struct rewrite_result r;
        struct err e = { 0 };
        char *dst = path_join(temp_dir(), "bad.gguf");
        open_world(&v, write_model(false, bad[i]), "Q4_K_M");
        plan_world(&v);
        assert_int_equal(rewrite_model(&v, dst, 0, &r, &e), E_FORMAT);
        assert_non_null(strstr(e.msg, "blk.3.ffn_down.weight"));
        assert_non_null(strstr(e.msg, "row 2"));
        assert_false(file_exists(dst));
        mem_free(r.loss);
        close_world(&v);
        mem_free(dst);
    }
}

static void a_stopped_rewrite_leaves_no_file(void **state)
{
    (void)state;
    struct world v;
    struct rewrite_result r;
    struct err e = { 0 };
    volatile sig_atomic_t stop = 1;
    char *dst = path_join(temp_dir(), "stopped.gguf");

    open_world(&v, write_model(false, 0), "Q4_K_M");
    plan_world(&v);
    struct rewrite_opt o = { .src = v.src,
                             .dst = dst,
                             .plan = &v.plan,
                             .mix = v.opt.mix,
                             .split_bytes = 9000,
                             .stop = &stop };
    assert_int_equal(rewrite_run(&o, &r, &e), E_CANCELLED);
    char *first = rewrite_part_name(dst, 0, 40);
    assert_false(file_exists(first) || file_exists(dst));
    mem_free(first);
    close_world(&v);
    mem_free(dst);
}

static void quantizing_a_quantized_model_needs_the_requantize_option(void **state)
{
    (void)state;
    struct world v;
    struct err e = { 0 };
    open_world(&v, mem_strdup(repo("models/tern-tales.gguf")), "Q4_K_M");
    assert_int_equal(plan_gguf(&v.plan, &v.arena, v.src, &v.opt, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "--requantize"));
    v.opt.requantize = true;
    assert_int_equal(plan_gguf(&v.plan, &v.arena, v.src, &v.opt, &e), OK);
    v.opt.requantize = false;
    v.opt.mix = plan_mix_by_name(STR("F16")); /* F16 is not a block format: always allowed */
    assert_int_equal(plan_gguf(&v.plan, &v.arena, v.src, &v.opt, &e), OK);
    close_world(&v);
}

static void a_disk_that_is_too_full_is_reported_before_writing(void **state)
{
    (void)state;
    struct err e = { 0 };
    assert_int_equal(rewrite_room(temp_dir(), 1000, &e), OK);
    assert_int_equal(rewrite_room(temp_dir(), UINT64_MAX / 2, &e), E_IO);
    assert_non_null(strstr(e.msg, "GiB of the disk are free"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q4_k_m_gives_more_bits_to_the_sensitive_layers),
        cmocka_unit_test(a_tied_embedding_is_quantized_like_an_output_head),
        cmocka_unit_test(patterns_override_the_mix),
        cmocka_unit_test(every_mix_has_a_plan),
        cmocka_unit_test(the_file_has_the_planned_types_and_close_values),
        cmocka_unit_test(a_split_file_opens_as_one_model),
        cmocka_unit_test(nan_weights_are_refused_naming_the_tensor),
        cmocka_unit_test(a_stopped_rewrite_leaves_no_file),
        cmocka_unit_test(quantizing_a_quantized_model_needs_the_requantize_option),
        cmocka_unit_test(a_disk_that_is_too_full_is_reported_before_writing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
