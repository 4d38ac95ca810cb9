//! The calls of a resumable upload.

use std::time::Duration;

use percale_api::uploads::{CommitUpload, Committed, NewUpload, SentGroups, Upload};
use percale_core::ObjectPath;
use percale_core::ids::LeaseId;
use reqwest::Method;

use super::get;
use crate::call::{Call, Repeat};
use crate::client::Client;

impl Client {
    /// Opens a resumable upload.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn open_upload(&self, upload: &NewUpload) -> crate::Result<Upload> {
        let call = Call::new(format!("upload {}", upload.path), Method::POST, "/v1/uploads").json(upload);
        self.json(call.repeat(Repeat::Keyed)).await
    }

    /// Asks what an upload still misses.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn upload(&self, id: LeaseId) -> crate::Result<Upload> {
        self.json(get(format!("ask for upload {id}"), format!("/v1/uploads/{id}"))).await
    }

    /// Names groups that an upload misses although they were sent: they count if they lie there. Returns what it still misses.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn recall_groups(&self, id: LeaseId, sent: &SentGroups) -> crate::Result<Upload> {
        let path = format!("/v1/uploads/{id}/groups");
        self.json(
            Call::new(format!("ask for upload {id}"), Method::POST, path).json(sent).repeat(Repeat::Safe),
        )
        .await
    }

    /// Gives an upload up; what was sent is removed.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn abort_upload(&self, id: LeaseId) -> crate::Result<()> {
        let call = Call::new(format!("abort upload {id}"), Method::DELETE, format!("/v1/uploads/{id}"));
        self.fetch(call).await.map(drop)
    }

    /// Completes the upload of an object. What is on its way over other connections is waited for, so long at most.
    ///
    /// # Errors
    /// As the server answers; `upload_incomplete` if something is missing.
    pub async fn commit_upload(
        &self,
        id: LeaseId,
        target: &ObjectPath,
        commit: &CommitUpload,
        wait: Duration,
    ) -> crate::Result<Committed> {
        let path = format!("/v1/uploads/{id}/commit");
        let mut call = Call::new(format!("complete the upload of {target}"), Method::POST, path);
        if wait > Duration::ZERO {
            call = call.wait(wait);
        }
        self.json(call.json(commit).repeat(Repeat::Keyed)).await
    }
}
