//! Quotas of users and groups, where the host keeps some. (Those of a project it tells by itself.)

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{SystemTime, UNIX_EPOCH};

/// The unit of limits, in bytes.
const UNIT_BYTES: u64 = 1024;

/// Bytes that the quotas of `uid` and `gid` leave on the filesystem of `fd`; none where there are none, or for who is bound by none.
pub(super) fn left(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> Option<u64> {
    if rustix::process::geteuid().is_root() {
        return None;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let of = |kind, id| quota(fd, kind, id).and_then(|quota| left_of(&quota, now));
    [of(libc::USRQUOTA, uid), of(libc::GRPQUOTA, gid)].into_iter().flatten().min()
}

fn quota(fd: BorrowedFd<'_>, kind: libc::c_int, id: u32) -> Option<libc::dqblk> {
    let mut quota = MaybeUninit::<libc::dqblk>::zeroed();
    let command = (libc::Q_GETQUOTA << 8) | kind;
    // SAFETY: takes a descriptor that is open, two numbers, and a place for a `dqblk`, which it fills or leaves alone.
    let result = unsafe { libc::syscall(libc::SYS_quotactl_fd, fd.as_raw_fd(), command, id, quota.as_mut_ptr()) };
    // SAFETY: it is plain numbers, which are zero where the call has not filled them.
    (result == 0).then(|| unsafe { quota.assume_init() })
}

/// The bytes that a quota leaves at `now`: up to its hard limit, and nothing above the soft one once its time is over.
fn left_of(quota: &libc::dqblk, now: u64) -> Option<u64> {
    let is_over = quota.dqb_bsoftlimit != 0
        && quota.dqb_curspace > quota.dqb_bsoftlimit.saturating_mul(UNIT_BYTES)
        && (1..=now).contains(&quota.dqb_btime);
    match quota.dqb_bhardlimit.saturating_mul(UNIT_BYTES) {
        _ if is_over => Some(0),
        0 => None,
        limit => Some(limit.saturating_sub(quota.dqb_curspace)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_leaves_what_is_below_its_limits() {
        let of = |hard, soft, used, until| {
            // SAFETY: it is plain numbers.
            let mut quota: libc::dqblk = unsafe { MaybeUninit::zeroed().assume_init() };
            (quota.dqb_bhardlimit, quota.dqb_bsoftlimit, quota.dqb_curspace, quota.dqb_btime) =
                (hard, soft, used, until);
            left_of(&quota, 100)
        };
        assert_eq!(of(0, 0, 5000, 0), None, "no limit");
        assert_eq!(of(8, 0, 5000, 0), Some(3192));
        assert_eq!(of(8, 0, 9000, 0), Some(0));
        assert_eq!((of(8, 4, 5000, 200), of(8, 4, 5000, 100)), (Some(3192), Some(0)));
        assert_eq!((of(0, 4, 5000, 200), of(0, 4, 5000, 99), of(0, 4, 3000, 99)), (None, Some(0), None));
    }
}
