/* mem/cuda_fd.c - CUDA memory that was mapped by hand (cuMemCreate, cuMemMap), as a file descriptor that other processes can map.
 *
 * The memory was made for that, or there is no descriptor. What is exported is the physical memory behind one mapping; a range
 * over several of them is none that can be exported, and goes another way.
 *
 * An open descriptor keeps the memory allocated, and so does a mapping of it: whoever frees it has it back when the last is gone.
 *
 * Any thread. tests/unit/mem_share.c, tests/wire/msg_cuda.c. */
#include <fcntl.h>
#include <unistd.h>

#include "mem/cuda.h"

static bool can_export(const void *ptr)
{
    uint64_t types = 0;
    return wefti_cu.physical_of && wefti_cu.physical_export && wefti_cu.physical_free &&
           !wefti_cu.attribute(&types, CU_ATTR_HANDLE_TYPES, (cu_ptr_t)(uintptr_t)ptr) && types & CU_HANDLE_FD;
}

bool wefti_cuda_export_fd(const void *ptr, size_t n, wefti_export_t *export_out)
{
    wefti_cuda_allocation_t of;
    if (!wefti_cuda_in_use() || !can_export(ptr))
        return false;
    wefti_cuda_place_t place = wefti_cuda_place(ptr);
    return place.sort == WEFTI_CUDA_DEVICE && wefti_cuda_mapping_of(ptr, &of) &&
           wefti_cuda_export_of(&place, &of, WEFTI_EXPORT_CUDA_FD, ptr, n, export_out);
}

int wefti_cuda_fd_of(const void *ptr)
{
    cu_handle_t physical;
    int fd = -1;
    if (wefti_cu.physical_of(&physical, (void *)(uintptr_t)ptr))
        return -1;
    if (wefti_cu.physical_export(&fd, physical, CU_HANDLE_FD, 0))
        fd = -1;
    wefti_cu.physical_free(physical);
    if (fd >= 0)
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

cu_result_t wefti_cuda_import_fd(int fd, int device, size_t n, cu_ptr_t *ptr_out)
{
    cu_handle_t physical;
    if (fd < 0 || !wefti_cu.physical_import || !wefti_cuda_maps())
        return CU_INVALID_HANDLE;
    cu_result_t r = wefti_cu.physical_import(&physical, (void *)(intptr_t)fd, CU_HANDLE_FD);
    if (r)
        return r;
    r = wefti_cuda_map(physical, device, n, ptr_out); /* fails if the memory is shorter than the peer says */
    wefti_cu.physical_free(physical);
    return r;
}
