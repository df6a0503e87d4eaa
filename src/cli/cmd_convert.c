/* tern convert: a Hugging Face folder to GGUF. */
#include "base/file.h"
#include "base/jsonw.h"
#include "cli/args.h"
#include "cli/cmd.h"
#include "cli/convert.h"

#include <stdio.h>
#include <unistd.h>

static const struct verb verb = {
    "convert",
    "tern convert SRC DST [--type F32|F16|BF16|Q8_0]",
    "Writes the Hugging Face folder SRC (config.json, *.safetensors, tokenizer.json) as the GGUF file\n"
    "DST, with tokenizer, chat template and sampling settings inside. DST appears whole or not at all.\n\n"
    "  tern convert Llama-3.2-1B/ llama-3.2-1b-q8_0.gguf --type Q8_0",
};

static int check(const char *type, int n_pos, struct convert_opt *opt, struct err *e)
{
    opt->type = dtype_by_name(str_c(type));
    if (n_pos != 2) return err_set(e, E_INVALID, "takes a folder and the name of the file to write");
    if (opt->type != DT_F32 && opt->type != DT_F16 && opt->type != DT_BF16 && opt->type != DT_Q8_0)
        return err_set(e, E_INVALID, "--type takes F32, F16, BF16 or Q8_0, found '%s'", type);
    if (file_is_dir(opt->dst)) return err_set(e, E_INVALID, "%s is a folder, expected a file name", opt->dst);
    return OK;
}

int cmd_convert(int argc, char **argv)
{
    struct convert_opt opt = { .progress = isatty(2) };
    struct convert_result r = { 0 };
    const char *pos[2] = { 0 }, *type = "Q8_0";
    bool json = false, helped;
    const struct arg table[] = {
        { "--type", NULL, ARG_STR, &type, "T", "number format of the matrices: F32 F16 BF16 Q8_0 (Q8_0)" },
        { "--threads", "-t", ARG_INT, &opt.n_threads, "N", "threads (default: physical cores)" },
        { "--json", NULL, ARG_FLAG, &json, NULL, "the result as a JSON line" },
        { 0 },
    };
    struct err e = { 0 };
    int n_pos;

    if (args_parse(&verb, table, argc, argv, pos, 2, &n_pos, &helped, &e) != OK) return cmd_usage("convert", &e);
    if (helped) return EXIT_OK;
    opt.src = pos[0], opt.dst = pos[1];
    if (check(type, n_pos, &opt, &e) != OK) return cmd_usage("convert", &e);
    if (convert_to_gguf(&opt, &r, &e) != OK) return cmd_fail(&e);
    if (json) {
        struct buf out = { 0 };
        struct jsonw w = { .out = &out };
        jsonw_obj(&w);
        jsonw_key(&w, "path"), jsonw_str(&w, str_c(opt.dst));
        jsonw_key(&w, "type"), jsonw_str(&w, str_c(dtype_name((int)opt.type)));
        jsonw_key(&w, "tensors"), jsonw_int(&w, r.n_tensors);
        jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)r.bytes);
        jsonw_key(&w, "seconds"), jsonw_num(&w, r.seconds);
        jsonw_end(&w);
        puts(buf_cstr(&out));
        buf_release(&out);
    } else {
        fprintf(stderr, "%s: %d tensors, %.1f MiB of weights, %s, %.1f s\n", opt.dst, r.n_tensors,
                (double)r.bytes / 1048576, dtype_name((int)opt.type), r.seconds);
    }
    return EXIT_OK;
}
