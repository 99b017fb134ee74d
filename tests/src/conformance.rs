//! The contract of [`FileSystem`](atoll_vfs::FileSystem) as plain functions, one demand each.
//!
//! [`filesystem_conformance!`](crate::filesystem_conformance) runs them all against an implementor.
//! Each gets an empty file system whose root is a directory of mode 0755.

pub mod attrs;
pub mod copies;
pub mod data;
pub mod dirs;
pub mod handles;
pub mod holes;
pub mod names;
pub mod renames;
pub mod xattrs;

/// Checks that a call fails with one of the errors that the contract allows.
macro_rules! refused {
    ($call:expr, $($errno:ident)|+) => {
        match $call {
            Err($(atoll_vfs::Errno::$errno)|+) => {}
            other => panic!(
                "expected {} from {}, got {:?}",
                stringify!($($errno)|+), stringify!($call), other
            ),
        }
    };
}
pub(crate) use refused;

/// Makes a module of tests, one for each demand of the contract.
///
/// `filesystem_conformance!(name, || make())` or, for an implementor with
/// [`Quirks`](crate::Quirks), `filesystem_conformance!(name, || make(), quirks)`. `make()` gives an
/// empty file system that owns what it needs.
#[macro_export]
macro_rules! filesystem_conformance {
    ($name:ident, $make:expr) => {
        $crate::filesystem_conformance!($name, $make, $crate::Quirks::default());
    };
    ($name:ident, $make:expr, $quirks:expr) => {
        $crate::filesystem_conformance_subjects!($name, || {
            Some($crate::Subject::new(($make)(), $quirks))
        });
    };
}

/// As [`filesystem_conformance!`](crate::filesystem_conformance), from a function that gives an
/// `Option<Subject>`: where there is none, the tests pass without having tested anything.
///
/// A third argument names demands that a foreign server does not meet, each with the reason, as
/// `&[(&str, &str)]`: those are not tested.
#[macro_export]
macro_rules! filesystem_conformance_subjects {
    ($name:ident, $subject:expr) => {
        $crate::filesystem_conformance_subjects!($name, $subject, &[]);
    };
    ($name:ident, $subject:expr, $except:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            fn subject(demand: &str) -> Option<$crate::Subject> {
                let except: &[(&str, &str)] = $except;
                match except.iter().find(|(name, _)| *name == demand) {
                    Some((_, reason)) => {
                        println!("not tested: {reason}");
                        None
                    }
                    None => ($subject)(),
                }
            }
            $crate::filesystem_conformance_subjects! { @tests
                names:
                    root_is_its_own_parent
                    lookup_finds_what_was_made
                    inode_numbers_differ
                    inode_numbers_are_never_used_again
                    lookup_errors
                    stale_inodes
                    names_are_unique
                    dot_names_are_refused
                    parents_are_directories
                    removed_directories_take_no_names
                    unlink_removes_one_name
                    unlink_errors
                    unlink_of_links_and_special_files
                    rmdir_removes_empty_directories
                    hard_links_are_one_file
                    hard_links_to_what_is_no_directory
                    links_are_limited
                    symlink_targets
                    readlink_errors
                    mknod_makes_special_files
                    mknod_errors
                    names_are_bytes
                    long_names_differ;
                renames:
                    rename_moves_a_file
                    rename_moves_a_directory
                    rename_replaces_a_file
                    rename_replaces_an_open_file
                    rename_replaces_across_types
                    rename_replaces_an_empty_directory
                    rename_replaces_the_same_kind_only
                    rename_of_nothing
                    rename_into_itself
                    rename_to_the_same_file
                    rename_noreplace
                    rename_exchange
                    rename_whiteout
                    rename_flag_errors
                    rename_keeps_handles
                    rename_back_and_forth;
                attrs:
                    new_files_belong_to_the_caller
                    setattr_changes_what_it_names
                    setattr_keeps_the_type
                    setattr_sets_times
                    setattr_of_other_types
                    setattr_size_errors
                    setgid_directories
                    directory_link_counts
                    names_stamp_times
                    content_stamps_times
                    blocks_count_storage
                    statfs_counts_space;
                data:
                    reads_return_writes
                    writes_overlap
                    reads_end_at_the_end
                    empty_writes
                    gaps_read_as_zeros
                    truncation_forgets
                    no_file_shows_another_ones_data
                    appends_go_to_the_end
                    sparse_files_reach_16_tib
                    files_end_at_the_largest_offset
                    the_last_byte_can_be_written
                    large_and_tiny_writes
                    blocks_in_any_order
                    handles_share_the_file
                    pieces_make_one_call
                    syncing_changes_nothing;
                copies:
                    copies_are_what_was_there
                    copies_end_at_the_end
                    copies_within_a_file
                    copies_of_holes
                    copy_errors
                    copies_stamp_times;
                holes:
                    seek_tells_data_from_holes
                    seek_ends_at_the_end_of_file
                    seek_in_an_empty_hole
                    fallocate_grows
                    allocated_space_can_be_written
                    fallocate_keep_size
                    punching_holes
                    punching_nothing
                    punched_holes_can_be_filled
                    zeroing_ranges
                    fallocate_errors
                    fallocate_of_everything
                    alternating_holes;
                handles:
                    handles_have_rights
                    opening_with_trunc
                    create_opens_or_makes
                    opening_other_types
                    bad_handles
                    unlinked_files_live_in_their_handles
                    removed_directories_live_in_their_handles
                    tmpfiles_can_be_linked
                    tmpfiles_go_with_their_handles
                    unlinked_files_can_be_linked_again
                    many_handles
                    deleted_files_give_their_space_back;
                dirs:
                    listings_are_complete
                    listings_continue_from_cookies
                    listings_survive_changes
                    removing_while_listing
                    cookies_of_removed_entries
                    odd_cookies
                    opendir_errors
                    deep_nesting
                    many_entries
                    many_long_names
                    many_subdirectories;
                xattrs:
                    xattrs_are_kept
                    xattr_flags
                    xattr_errors
                    xattr_values_of_every_size
                    many_xattrs
                    xattr_names_are_limited
                    xattrs_of_other_types
                    xattrs_follow_the_file;
            }
        }
    };
    (@tests $($module:ident: $($demand:ident)*;)*) => {
        $($(
            #[test]
            fn $demand() {
                if let Some(mut subject) = subject(stringify!($demand)) {
                    $crate::conformance::$module::$demand(&mut subject);
                }
            }
        )*)*
    };
}

#[cfg(test)]
mod tests {
    /// A demand that is not in the macro's list is never run.
    #[test]
    fn every_demand_is_listed() {
        let list = include_str!("conformance.rs");
        for module in [
            include_str!("conformance/attrs.rs"),
            include_str!("conformance/data.rs"),
            include_str!("conformance/dirs.rs"),
            include_str!("conformance/handles.rs"),
            include_str!("conformance/holes.rs"),
            include_str!("conformance/names.rs"),
            include_str!("conformance/renames.rs"),
            include_str!("conformance/xattrs.rs"),
        ] {
            let demands = module.split("\npub fn ").skip(1);
            for demand in demands.map(|rest| rest.split('(').next().unwrap_or_default()) {
                let listed = list.lines().any(|line| line.trim().trim_end_matches(';') == demand);
                assert!(listed, "{demand} is missing in the list");
            }
        }
    }
}
