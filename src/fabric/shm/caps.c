/* fabric/shm/caps.c - who can share memory with whom.
 *
 * Two processes can when each may open the other's descriptors through /proc: same running kernel (boot id), same process and
 * user namespace, same user and group in every sense, same capabilities, and both dumpable; that is the kernel's own rule
 * (ptrace access, read mode). Both sides compare the same two caps byte by byte, so both come to the same answer. Capabilities
 * are only a claim: they save a try that would fail, and let nobody in (door.c does). Whether the peer's memory may be read
 * directly is a stricter rule with local policy (Yama, seccomp): lanes find that out by trying.
 *
 * tests/wire/fabric_shm_faults.c: equal caps match, a child under another user does not. */
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "fabric/shm/internal.h"

#define CAPS_VERSION 4u /* 2: arenas; 3: longer records in small rings, no withdrawals; 4: doors */

static bool ns_inode(const char *path, uint64_t *inode_out)
{
    struct stat info;
    if (stat(path, &info))
        return false;
    *inode_out = (uint64_t)info.st_ino;
    return true;
}

/* Read once, when the transport is opened: later there may be no descriptor left to read it with. */
void wefti_shm_boot_id(wefti_shm_transport_t *r)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    r->has_boot_id = read(fd, r->boot_id, sizeof r->boot_id) == (ssize_t)sizeof r->boot_id;
    close(fd);
}

/* 64 bits of permitted capabilities. */
static bool capabilities(uint64_t *out)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &head, data))
        return false;
    *out = (uint64_t)data[1].permitted << 32 | data[0].permitted;
    return true;
}

/* What both sides must have the same; false: this process shares with nobody. */
static bool facts(const wefti_shm_transport_t *r, wefti_writer_t *w)
{
    uid_t ruid, euid, suid;
    gid_t rgid, egid, sgid;
    uint64_t pid_ns, user_ns, caps;
    if (getresuid(&ruid, &euid, &suid) || getresgid(&rgid, &egid, &sgid) || ruid != euid || euid != suid || rgid != egid ||
        egid != sgid || prctl(PR_GET_DUMPABLE) != 1 || !ns_inode("/proc/self/ns/pid", &pid_ns) ||
        !ns_inode("/proc/self/ns/user", &user_ns) || !capabilities(&caps) || !r->has_boot_id)
        return false;
    wefti_put_u32(w, CAPS_VERSION);
    wefti_put_bytes(w, r->boot_id, sizeof r->boot_id);
    wefti_put_u64(w, pid_ns);
    wefti_put_u64(w, user_ns);
    wefti_put_u64(w, caps);
    wefti_put_u32(w, (uint32_t)euid);
    wefti_put_u32(w, (uint32_t)egid);
    /* Rings and transfers look the same only for programs of one word size and one grain. */
    wefti_put_u32(w, (uint32_t)sizeof(void *));
    wefti_put_u32(w, WEFTI_RING_GRAIN);
    return true;
}

/* A caps of one byte says that this process shares with nobody, or that there is no descriptor left for a door. */
size_t wefti_shm_caps(wefti_transport_t *transport, int side, void *buf)
{
    wefti_shm_transport_t *r = (wefti_shm_transport_t *)transport;
    wefti_writer_t w = wefti_writer(buf, WEFTI_CAPS_MAX);
    if (!facts(r, &w) || (side == WEFTI_SIDE_LISTENER && wefti_shm_door_open(r))) {
        w = wefti_writer(buf, WEFTI_CAPS_MAX);
        wefti_put_u8(&w, 0);
    } else if (side == WEFTI_SIDE_LISTENER) {
        wefti_shm_door_put(r, &w);
    }
    return (size_t)(w.at - (uint8_t *)buf);
}

bool wefti_shm_match(wefti_transport_t *transport, const void *caps, size_t n)
{
    uint8_t own[WEFTI_CAPS_MAX];
    wefti_writer_t w = wefti_writer(own, sizeof own);
    return (n == WEFTI_SHM_CAPS_SIZE || n == WEFTI_SHM_CAPS_SIZE + WEFTI_SHM_DOOR_SIZE) &&
           facts((const wefti_shm_transport_t *)transport, &w) && !memcmp(own, caps, WEFTI_SHM_CAPS_SIZE);
}
