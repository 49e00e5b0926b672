#include "planner/milp.h"

#include "core/mem.h"

#include <assert.h>
#include <stdlib.h>

void bl_milp_free(bl_milp *milp) {
    free(milp->columns);
    free(milp->rows);
    free(milp->entries);
    *milp = (bl_milp){0};
}

bl_status bl_milp_add_column(bl_milp *milp, bl_milp_column column, int *column_p, bl_error *err) {
    BL_TRY(bl_grow((void **)&milp->columns, &milp->column_capacity, milp->n_columns + 1,
                   sizeof *milp->columns, err));
    *column_p = (int)milp->n_columns;
    milp->columns[milp->n_columns++] = column;
    return BL_OK;
}

bl_status bl_milp_add_row(bl_milp *milp, double lower, double upper, bl_error *err) {
    BL_TRY(bl_grow((void **)&milp->rows, &milp->row_capacity, milp->n_rows + 1, sizeof *milp->rows,
                   err));
    milp->rows[milp->n_rows++] = (bl_milp_row){lower, upper, milp->n_entries, 0};
    return BL_OK;
}

bl_status bl_milp_add_entry(bl_milp *milp, int column, double value, bl_error *err) {
    assert(milp->n_rows > 0 && column >= 0 && (size_t)column < milp->n_columns);
    if (value == 0.0)
        return BL_OK;
    BL_TRY(bl_grow((void **)&milp->entries, &milp->entry_capacity, milp->n_entries + 1,
                   sizeof *milp->entries, err));
    milp->entries[milp->n_entries++] = (bl_milp_entry){column, value};
    milp->rows[milp->n_rows - 1].n++;
    return BL_OK;
}
