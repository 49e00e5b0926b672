/*
 * embed.h: text files that travel inside the program (the topology catalogue), written as C by
 * scripts/embed.sh at build time.
 */
#ifndef BL_CORE_EMBED_H
#define BL_CORE_EMBED_H

typedef struct bl_embedded {
    const char *name; /* base name without ending; NULL ends the array */
    const char *text; /* terminated */
} bl_embedded;

extern const bl_embedded bl_catalogue_files[];

#endif
