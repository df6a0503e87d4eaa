/* Prints the size of every struct of tern.h and the offset of every field: compared with
 * tests/abi/layout.txt. A field may be added at the end; none may move. FIRST: what the first tern.h
 * (tests/abi/first) had. */
#include <tern.h>

#include <stdio.h>

#define SIZE(type) printf(#type " %zu\n", sizeof(type))
#define AT(type, field) printf(#type "." #field " %zu\n", offsetof(type, field))

int main(void)
{
    printf("TERN_ABI %d\n", TERN_ABI);
    SIZE(tern_options);
    AT(tern_options, size);
    AT(tern_options, device);
    AT(tern_options, threads);
    AT(tern_options, context);
    AT(tern_options, batch);
    AT(tern_options, reference);
    AT(tern_options, sequences);
    AT(tern_options, gpu_layers);
    AT(tern_options, vram_only);
    AT(tern_options, chat_template);
    AT(tern_options, allow_nan);
    AT(tern_options, isa);
    AT(tern_options, numa);
#ifndef FIRST
    AT(tern_options, kv_tokens);
    AT(tern_options, queue);
    AT(tern_options, pinned);
    AT(tern_options, background);
    AT(tern_options, verify_manifest);
    AT(tern_options, model_key_file);
    AT(tern_options, model_key_command);
    AT(tern_options, on_progress);
    AT(tern_options, progress_arg);
    AT(tern_options, cpu_moe);
    AT(tern_options, n_cpu_moe);
    AT(tern_options, place);
#endif
    SIZE(tern_params);
    AT(tern_params, size);
    AT(tern_params, max_tokens);
    AT(tern_params, temp);
    AT(tern_params, top_p);
    AT(tern_params, min_p);
    AT(tern_params, typical);
    AT(tern_params, repeat_penalty);
    AT(tern_params, freq_penalty);
    AT(tern_params, presence_penalty);
    AT(tern_params, top_k);
    AT(tern_params, repeat_last);
    AT(tern_params, seed);
    AT(tern_params, raw);
    AT(tern_params, ignore_eos);
    AT(tern_params, stop);
    AT(tern_params, grammar);
    AT(tern_params, json_schema);
#ifndef FIRST
    AT(tern_params, deadline_ms);
    AT(tern_params, priority);
    AT(tern_params, logprobs);
    AT(tern_params, top_logprobs);
#endif
    SIZE(tern_message);
    AT(tern_message, role);
    AT(tern_message, content);
    SIZE(tern_event);
    AT(tern_event, text);
    AT(tern_event, n);
    AT(tern_event, id);
    AT(tern_event, finish);
#ifndef FIRST
    AT(tern_event, logprob);
    AT(tern_event, n_top);
    AT(tern_event, top);
#endif
    SIZE(tern_stats);
    AT(tern_stats, prompt_tokens);
    AT(tern_stats, cached_tokens);
    AT(tern_stats, tokens);
    AT(tern_stats, prompt_ms);
    AT(tern_stats, decode_ms);
    AT(tern_stats, first_token_ms);
    SIZE(tern_model_info);
    AT(tern_model_info, name);
    AT(tern_model_info, arch);
    AT(tern_model_info, device);
    AT(tern_model_info, dtype);
    AT(tern_model_info, n_params);
    AT(tern_model_info, weight_bytes);
    AT(tern_model_info, kv_bytes);
    AT(tern_model_info, scratch_bytes);
    AT(tern_model_info, context);
    AT(tern_model_info, vocab);
    AT(tern_model_info, has_chat);
    AT(tern_model_info, load_ms);
    AT(tern_model_info, pack_ms);
#ifndef FIRST
    AT(tern_model_info, id);
    AT(tern_model_info, path);
    AT(tern_model_info, state);
    AT(tern_model_info, progress);
    AT(tern_model_info, embedding);
    AT(tern_model_info, sequences);
    AT(tern_model_info, mapped_bytes);
    AT(tern_model_info, device_bytes);
    AT(tern_model_info, resident_bytes);
    AT(tern_model_info, n_loads);
    AT(tern_model_info, n_evictions);
    SIZE(tern_top);
    AT(tern_top, id);
    AT(tern_top, logprob);
    SIZE(tern_runtime_options);
    AT(tern_runtime_options, size);
    AT(tern_runtime_options, memory_limit);
    AT(tern_runtime_options, models_max);
    AT(tern_runtime_options, keep_alive_ms);
    SIZE(tern_usage);
    AT(tern_usage, n_models);
    AT(tern_usage, n_loaded);
    AT(tern_usage, bytes);
    AT(tern_usage, memory_limit);
    SIZE(tern_counts);
    AT(tern_counts, n_submitted);
    AT(tern_counts, n_finished);
    AT(tern_counts, n_cancelled);
    AT(tern_counts, n_failed);
    AT(tern_counts, n_rejected);
    AT(tern_counts, prompt_tokens);
    AT(tern_counts, cached_tokens);
    AT(tern_counts, tokens);
    AT(tern_counts, waiting);
    AT(tern_counts, running);
    AT(tern_counts, queue_peak);
    AT(tern_counts, kv_blocks);
    AT(tern_counts, kv_blocks_used);
    AT(tern_counts, block_tokens);
#endif
    return 0;
}
