/* hfkeys.h - GGUF keys that hold what a Hugging Face folder said, so that the way back is exact.
 *
 * togguf writes them (unless `bare`), tohf reads them. Other programs ignore them, except
 * tokenizer.huggingface.json, which the GGUF specification defines. */
#ifndef TERN_CONVERT_HFKEYS_H
#define TERN_CONVERT_HFKEYS_H

/* Whole files, as text. */
#define HFKEY_CONFIG "tern.hf.config.json"
#define HFKEY_GENERATION "tern.hf.generation_config.json"
#define HFKEY_TOKENIZER_CONFIG "tern.hf.tokenizer_config.json"
#define HFKEY_TOKENIZER "tokenizer.huggingface.json"

/* Two string arrays of equal length: the folder's tensor names, and "BF16 64,128" for each. */
#define HFKEY_NAMES "tern.hf.tensor_names"
#define HFKEY_TYPES "tern.hf.tensor_types"

/* Prefix; a tensor name follows. The F32 values of a tensor that GGUF stores changed (norm + 1,
 * -exp(x)) and that the inverse function does not restore bit by bit. */
#define HFKEY_EXACT "tern.hf.exact."
#endif
