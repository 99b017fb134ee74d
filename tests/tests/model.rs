//! The model against the contract.

use atoll_tests::filesystem_conformance;
use atoll_vfs::model::ModelFs;

filesystem_conformance!(conformance, ModelFs::default);
