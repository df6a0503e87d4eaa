/* hubfiles.h - the files of a repository on the Hugging Face Hub, and which of them make a model.
 *
 * One set of rules chooses what is downloaded, what a name of the cache stands for, and what is listed:
 *   - GGUF files are models, each with its other parts. Of several the one named wins, else Q4_K_M.
 *   - config.json with safetensors, else with ONNX files, is one model: a folder. Only its weights,
 *     configuration and tokenizer belong to it; not .bin, .pt, images or files of subfolders.
 * Names come from strangers: hub_name_is_safe says which ones may become a path. Functions without
 * state: any thread. */
#ifndef TERN_FORMAT_HUBFILES_H
#define TERN_FORMAT_HUBFILES_H

#include "base/err.h"
#include "base/str.h"

struct hub_file {
    char *name;     /* relative to the repository, with slashes */
    uint64_t bytes; /* 0: unknown */
    char sum[65];   /* SHA-256 (64 digits) or git's SHA-1 of a blob (40 digits); "": unknown */
    bool chosen;
};

struct hub_files {
    struct hub_file *at;
    int n, cap;
};

enum { HUB_FILES_MAX = 20000 };

/* Appends a copy of name; NULL: no memory. A hub_files that is zeroed is a valid empty one. */
struct hub_file *hub_files_add(struct hub_files *l, struct str name);
void hub_files_sort(struct hub_files *l); /* by name, so that the order on disk does not matter */
void hub_files_release(struct hub_files *l);

/* Not empty, not absolute, no "..", "." or empty component, no control character or backslash, at
 * most 512 bytes. */
bool hub_name_is_safe(struct str name);
/* "x-00002-of-00003.gguf", also of .safetensors: is it one of several parts? */
bool hub_name_is_part(struct str name, int *part, int *count);
/* A GGUF file with a model in it that is not a later part of one: no mmproj file. */
bool hub_name_is_gguf(struct str name);

/* The parts of the file at index i are all there, whatever their order. */
bool hub_file_is_whole(const struct hub_files *l, int i);

enum hub_kind {
    HUB_NONE,   /* no model in it that tern reads */
    HUB_FOLDER, /* config.json and safetensors files */
    HUB_GGUF,   /* one GGUF file, or all of its parts */
    HUB_ONNX    /* config.json and an ONNX file */
};

struct hub_choice {
    enum hub_kind kind;
    int head; /* index of the file that stands for the model; -1: its folder does */
};

/* Marks the files of a model as chosen. file: its path, or a word in its name such as Q4_K_M; p NULL:
 * none is named. E_INVALID: several models fit, and the message lists them. E_NOTFOUND: no file of
 * this name. E_UNSUPPORTED: nothing that tern reads. */
int hub_choose(struct hub_files *l, struct str file, struct hub_choice *out, struct err *e);
#endif
