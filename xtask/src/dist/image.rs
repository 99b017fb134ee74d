//! The image for containers, in the form of the Open Container Initiative: a tar archive of blobs,
//! which are named after their SHA-256 and lead from `index.json` to the manifest, from that to the
//! configuration and to the one layer. `manifest.json` says the same in Docker's older form.

use std::path::Path;

use serde_json::{Value, json};

use crate::dist::stage::{Stage, read, sha256};
use crate::steps::{Failure, program};

const MEDIA: &str = "application/vnd.oci.image";

/// A blob of the image.
struct Blob {
    /// The digits of its SHA-256.
    digest: String,
    size: usize,
}

impl Blob {
    /// Puts `content` into the image.
    fn new(image: &Stage, content: &[u8]) -> Result<Self, Failure> {
        image.put("new", content, 0o644)?;
        let new = image.root().join("new");
        let digest = sha256(&new)?;
        std::fs::remove_file(&new).map_err(|error| crate::dist::stage::failed(&new, &error))?;
        let blob = Blob { digest, size: content.len() };
        image.put(&blob.place(), content, 0o644)?;
        Ok(blob)
    }

    fn place(&self) -> String {
        format!("blobs/sha256/{}", self.digest)
    }

    /// How other blobs refer to it.
    fn descriptor(&self, kind: &str) -> Value {
        let Blob { digest, size } = self;
        json!({"mediaType": format!("{MEDIA}.{kind}"), "digest": format!("sha256:{digest}"), "size": size})
    }
}

/// Makes the image `to`, in `image`, of the files in `root`.
pub fn make(
    image: &Stage,
    root: &Stage,
    version: &str,
    time: u64,
    to: &Path,
) -> Result<(), Failure> {
    let archive = image.root().with_extension("layer");
    root.tar(&archive, time)?;
    // It is not compressed, so that its digest is that of the files as well.
    let layer = Blob::new(image, &read(&archive)?)?;
    std::fs::remove_file(&archive).map_err(|error| crate::dist::stage::failed(&archive, &error))?;

    let created = program("date").args(["--utc", "--date", &format!("@{time}"), "+%FT%TZ"]);
    let configuration = json!({
        "architecture": "amd64",
        "os": "linux",
        "created": created.output()?.trim(),
        "config": {"Entrypoint": ["/usr/bin/atoll"], "Cmd": ["--help"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", layer.digest)]},
    });
    let configuration = Blob::new(image, configuration.to_string().as_bytes())?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": format!("{MEDIA}.manifest.v1+json"),
        "config": configuration.descriptor("config.v1+json"),
        "layers": [layer.descriptor("layer.v1.tar")],
    });
    let manifest = Blob::new(image, manifest.to_string().as_bytes())?;
    let mut first = manifest.descriptor("manifest.v1+json");
    first["annotations"] = json!({"org.opencontainers.image.ref.name": version});
    let index = json!({
        "schemaVersion": 2,
        "mediaType": format!("{MEDIA}.index.v1+json"),
        "manifests": [first],
    });
    let docker = json!([{
        "Config": configuration.place(),
        "RepoTags": [format!("atoll:{version}")],
        "Layers": [layer.place()],
    }]);
    image.put("index.json", index.to_string().as_bytes(), 0o644)?;
    image.put("manifest.json", docker.to_string().as_bytes(), 0o644)?;
    image.put("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
    image.tar(to, time)
}
