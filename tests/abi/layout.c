/* Prints the size of every struct of tern.h and the offset of every field: compared with
 * tests/abi/layout.txt. A field may be added at the end; none may move. */
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
    SIZE(tern_message);
    AT(tern_message, role);
    AT(tern_message, content);
    SIZE(tern_event);
    AT(tern_event, text);
    AT(tern_event, n);
    AT(tern_event, id);
    AT(tern_event, finish);
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
    return 0;
}
