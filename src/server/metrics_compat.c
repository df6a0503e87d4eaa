/* metrics_compat.c - the metrics once more, under the names of vLLM and llama.cpp, for dashboards
 * and routers that expect those. */
#include "base/stat.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "engine/stats.h"
#include "pool/pool.h"
#include "server/metrics.h"
#include "server/server_impl.h"

static const struct metric vllm[] = {
    METRIC("vllm:num_requests_running", GAUGE, running,
           "Number of requests in model execution batches."),
    METRIC("vllm:num_requests_waiting", GAUGE, waiting,
           "Number of requests waiting to be processed."),
    METRIC("vllm:prefix_cache_queries_total", COUNTER, prefix_queried,
           "Prefix cache queries, in tokens."),
    METRIC("vllm:prefix_cache_hits_total", COUNTER, prefix_hit, "Prefix cache hits, in tokens."),
    METRIC("vllm:num_preemptions_total", COUNTER, preemptions, "Cumulative number of preemptions."),
    METRIC("vllm:prompt_tokens_total", COUNTER, prompt_tokens,
           "Number of prefill tokens processed."),
    METRIC("vllm:prompt_tokens_cached_total", COUNTER, cached_tokens,
           "Number of cached prompt tokens."),
    METRIC("vllm:generation_tokens_total", COUNTER, generated_tokens,
           "Number of generation tokens processed."),
    METRIC("vllm:time_to_first_token_seconds", HIST, ttft, "Time to first token in seconds."),
    METRIC("vllm:inter_token_latency_seconds", HIST, itl, "Inter-token latency in seconds."),
    METRIC("vllm:e2e_request_latency_seconds", HIST, e2e, "End to end request latency in seconds."),
    METRIC("vllm:request_queue_time_seconds", HIST, queue, "Time spent waiting."),
    METRIC("vllm:request_prefill_time_seconds", HIST, prefill, "Time spent in prefill."),
    METRIC("vllm:request_decode_time_seconds", HIST, decode, "Time spent in decode."),
    METRIC("vllm:request_prompt_tokens", HIST, prompt_len,
           "Number of prefill tokens of a request."),
    METRIC("vllm:request_generation_tokens", HIST, output_len,
           "Number of generation tokens of a request."),
    METRIC("vllm:iteration_tokens_total", HIST, step_size, "Number of tokens per engine step."),
};

static void write_vllm_labels(struct server *v, int model, struct buf *out)
{
    char index[16];

    snprintf(index, sizeof index, "%d", model);
    stat_label(out, "model_name", str_c(pool_at(v->pool, model)->id));
    stat_label(out, "engine", str_c(index));
}

static double kv_usage(const struct engine_stats *s)
{
    double all = (double)gauge_get(&s->kv_total);
    return all > 0 ? (double)gauge_get(&s->kv_used) / all : 0;
}

/* vLLM counts a deadline as an abort. */
static void write_vllm_outcomes(struct server *v, struct buf *out)
{
    static const struct {
        const char *word;
        enum finish finish[2];
    } reasons[] = {
        { "stop", { FINISH_STOP, FINISH_STOP } },
        { "length", { FINISH_LENGTH, FINISH_LENGTH } },
        { "abort", { FINISH_CANCELLED, FINISH_DEADLINE } },
        { "error", { FINISH_ERROR, FINISH_ERROR } },
    };
    const char *help = "Count of finished requests.";
    struct buf b = { 0 };

    for (int k = server_next_model(v, 0); k < pool_n(v->pool); k = server_next_model(v, k + 1)) {
        const struct engine_stats *s = server_stats(v, k);
        for (size_t i = 0; s && i < sizeof reasons / sizeof *reasons; i++, help = NULL) {
            uint64_t n = 0;
            for (enum finish f = reasons[i].finish[0]; f <= reasons[i].finish[1]; f++)
                n += counter_get(&s->finished[f]);
            buf_clear(&b);
            write_vllm_labels(v, k, &b);
            stat_label(&b, "finished_reason", str_c(reasons[i].word));
            stat_counter(out, "vllm:request_success_total", metrics_labels(&b, out), help, n);
        }
    }
    buf_release(&b);
}

/* Usage of the KV cache, and its configuration as labels. */
static void write_vllm_cache(struct server *v, struct buf *out)
{
    static const char *const names[] = { "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc" };
    const char *help;
    struct buf b = { 0 };

    for (int i = 0; i < 2; i++) { /* the second name is that of older versions */
        help = "KV-cache usage. 1 means 100 percent usage.";
        for (int k = server_next_model(v, 0); k < pool_n(v->pool);
             k = server_next_model(v, k + 1)) {
            const struct engine_stats *s = server_stats(v, k);
            if (!s) continue;
            buf_clear(&b);
            write_vllm_labels(v, k, &b);
            stat_gauge(out, names[i], metrics_labels(&b, out), help, kv_usage(s));
            help = NULL;
        }
    }
    help = "Information of the LLMEngine CacheConfig.";
    for (int k = server_next_model(v, 0); k < pool_n(v->pool); k = server_next_model(v, k + 1)) {
        struct engine_info info;
        if (!server_engine_info(v, k, &info)) continue;
        buf_clear(&b);
        write_vllm_labels(v, k, &b);
        buf_printf(&b,
                   ",block_size=\"%d\",num_gpu_blocks=\"%d\",cache_dtype=\"%s\",enable_prefix_"
                   "caching=\"%s\"",
                   info.block_tokens, info.n_blocks, info.kv_type,
                   info.opt.no_prefix ? "False" : "True");
        stat_gauge(out, "vllm:cache_config_info", metrics_labels(&b, out), help, 1);
        help = NULL;
    }
    buf_release(&b);
}

static double hist_sum(const struct hist *h)
{
    return (double)atomic_load_explicit(&h->sum_micro, memory_order_relaxed) / 1e6;
}

/* llama.cpp serves one model: sums over all models, without labels. */
static void write_llamacpp(struct server *v, struct buf *out)
{
    uint64_t prompt = 0, cached = 0, made = 0, steps = 0, tokens = 0;
    double prompt_s = 0, made_s = 0, used = 0, total = 0;
    struct sums now;

    history_sample(v, &now);
    for (int k = server_next_model(v, 0); k < pool_n(v->pool); k = server_next_model(v, k + 1)) {
        const struct engine_stats *s = server_stats(v, k);
        if (!s) continue;
        prompt += counter_get(&s->prompt_tokens), cached += counter_get(&s->cached_tokens);
        made += counter_get(&s->generated_tokens);
        steps += counter_get(&s->steps), tokens += counter_get(&s->step_tokens);
        prompt_s += hist_sum(&s->prefill), made_s += hist_sum(&s->decode);
        used += (double)gauge_get(&s->kv_used), total += (double)gauge_get(&s->kv_total);
    }
    stat_counter(out, "llamacpp:prompt_tokens_total", "", "Number of prompt tokens processed.",
                 prompt > cached ? prompt - cached : 0);
    stat_counter(out, "llamacpp:prompt_tokens_cached_total", "",
                 "Number of prompt tokens from the cache.", cached);
    stat_gauge(out, "llamacpp:prompt_seconds_total", "", "Prompt process time", prompt_s);
    stat_counter(out, "llamacpp:tokens_predicted_total", "",
                 "Number of generation tokens processed.", made);
    stat_gauge(out, "llamacpp:tokens_predicted_seconds_total", "", "Predict process time", made_s);
    stat_counter(out, "llamacpp:n_decode_total", "", "Total number of decode calls", steps);
    stat_gauge(out, "llamacpp:n_busy_slots_per_decode", "", "Average tokens a decode call",
               steps ? (double)tokens / (double)steps : 0);
    stat_gauge(out, "llamacpp:prompt_tokens_seconds", "", "Average prompt throughput in tokens/s.",
               prompt_s > 0 ? (double)(prompt - cached) / prompt_s : 0);
    stat_gauge(out, "llamacpp:predicted_tokens_seconds", "",
               "Average generation throughput in tokens/s.",
               made_s > 0 ? (double)made / made_s : 0);
    stat_gauge(out, "llamacpp:requests_processing", "", "Number of requests processing.",
               (double)now.running);
    stat_gauge(out, "llamacpp:requests_deferred", "", "Number of requests deferred.",
               (double)now.waiting);
    stat_gauge(out, "llamacpp:kv_cache_usage_ratio", "",
               "KV-cache usage. 1 means 100 percent usage.", total > 0 ? used / total : 0);
}

void metrics_write_compat(struct server *v, const char *dialects, struct buf *out)
{
    if (strstr(dialects, "vllm")) {
        metrics_write_table(v, vllm, sizeof vllm / sizeof *vllm, write_vllm_labels, out);
        write_vllm_outcomes(v, out);
        write_vllm_cache(v, out);
    }
    if (strstr(dialects, "llamacpp")) write_llamacpp(v, out);
}
