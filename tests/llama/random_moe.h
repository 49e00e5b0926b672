/*
 * random_moe.h: a small Mixture-of-Experts model with random weights, as a GGUF file: no registry has
 * one, and llama.cpp loads nothing else.
 */
#ifndef BL_TESTS_RANDOM_MOE_H
#define BL_TESTS_RANDOM_MOE_H

#include <stdbool.h>

enum { MOE_LAYERS = 4, MOE_EXPERTS = 16, MOE_K = 4, MOE_VOCABULARY = 259 };

/* Architecture qwen3moe, 2 MB. */
bool random_moe_write(const char *path);

#endif
