//! Server reflection: which services there are, and the files that describe them.
//!
//! tonic's own answers with files it decoded and encoded again, which drops the custom options Cosmos clients look for
//! (`cosmos.msg.v1.signer`, `google.api.http`), knows no extensions, and ends the stream at the first unknown name. Here
//! every file goes out byte for byte as it was compiled.
//!
//! `v1` and `v1alpha` differ in nothing but the package's name, so one implementation serves both.

// See wire.rs.
#![allow(clippy::result_large_err)]

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use holdfast_proto::Message;
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto};
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::server_reflection_server::ServerReflection;
use tonic_reflection::pb::v1::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};

use super::GrpcServeError;

/// Encoded descriptor files, found by each name they define.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    files: Vec<Vec<u8>>,
    by_file: BTreeMap<String, usize>,
    by_symbol: BTreeMap<String, usize>,
    /// Extended message, then field number.
    by_extension: BTreeMap<String, BTreeMap<i32, usize>>,
    services: BTreeSet<String>,
}

/// Services of other processes: their files are in the descriptor set, which is one for all, but nobody answers for them
/// here.
const NOT_SERVED: [&str; 3] =
    ["holdfast.runner.v1.Worker", "holdfast.host.v1.Host", "holdfast.gateway.v1.Gateway"];

impl Descriptors {
    /// All files of `sets`, each an encoded `google.protobuf.FileDescriptorSet`. Of two files of one name the first
    /// counts.
    pub(super) fn new(sets: &[&[u8]]) -> Result<Self, GrpcServeError> {
        let mut all = Self::default();
        for set in sets {
            // A descriptor set is `repeated FileDescriptorProto file = 1`; so is this message, but it leaves the files
            // as bytes.
            let set = FileDescriptorResponse::decode(*set)
                .map_err(|e| GrpcServeError::Descriptors(e.to_string()))?;
            for file in set.file_descriptor_proto {
                all.add(file)?;
            }
        }
        Ok(all)
    }

    /// Full names of the services that a chain node answers for, sorted.
    pub(super) fn services(&self) -> impl Iterator<Item = &str> {
        self.services.iter().map(String::as_str)
    }

    fn add(&mut self, encoded: Vec<u8>) -> Result<(), GrpcServeError> {
        let file = FileDescriptorProto::decode(encoded.as_slice())
            .map_err(|e| GrpcServeError::Descriptors(e.to_string()))?;
        if self.by_file.contains_key(file.name()) {
            return Ok(());
        }
        let index = self.files.len();
        self.files.push(encoded);
        self.by_file.insert(file.name().to_owned(), index);
        let package = file.package();
        for message in &file.message_type {
            self.add_message(package, message, index);
        }
        for item in &file.enum_type {
            self.add_enum(package, item, index);
        }
        for field in &file.extension {
            self.add_extension(package, field, index);
        }
        for service in &file.service {
            let name = join(package, service.name());
            for method in &service.method {
                self.by_symbol.insert(join(&name, method.name()), index);
            }
            self.by_symbol.insert(name.clone(), index);
            if !NOT_SERVED.contains(&name.as_str()) {
                self.services.insert(name);
            }
        }
        Ok(())
    }

    fn add_message(&mut self, scope: &str, message: &DescriptorProto, index: usize) {
        let name = join(scope, message.name());
        for field in &message.field {
            self.by_symbol.insert(join(&name, field.name()), index);
        }
        for oneof in &message.oneof_decl {
            self.by_symbol.insert(join(&name, oneof.name()), index);
        }
        for field in &message.extension {
            self.add_extension(&name, field, index);
        }
        for item in &message.enum_type {
            self.add_enum(&name, item, index);
        }
        // As deep as the source nests them; the decoder has refused more than 100 levels.
        for nested in &message.nested_type {
            self.add_message(&name, nested, index);
        }
        self.by_symbol.insert(name, index);
    }

    /// The values of an enum are siblings of the enum, as in C++.
    fn add_enum(&mut self, scope: &str, item: &EnumDescriptorProto, index: usize) {
        self.by_symbol.insert(join(scope, item.name()), index);
        for value in &item.value {
            self.by_symbol.insert(join(scope, value.name()), index);
        }
    }

    fn add_extension(&mut self, scope: &str, field: &FieldDescriptorProto, index: usize) {
        let extended = field.extendee().trim_start_matches('.').to_owned();
        self.by_extension.entry(extended).or_default().insert(field.number(), index);
        self.by_symbol.insert(join(scope, field.name()), index);
    }

    fn file(&self, index: Option<&usize>, wanted: impl FnOnce() -> String) -> MessageResponse {
        match index.and_then(|index| self.files.get(*index)) {
            Some(file) => MessageResponse::FileDescriptorResponse(FileDescriptorResponse {
                file_descriptor_proto: vec![file.clone()],
            }),
            None => refusal(Code::NotFound, format!("{}: not found", wanted())),
        }
    }

    fn answer(&self, request: &MessageRequest) -> MessageResponse {
        match request {
            MessageRequest::FileByFilename(name) => {
                self.file(self.by_file.get(name), || format!("file {name}"))
            }
            MessageRequest::FileContainingSymbol(name) => {
                self.file(self.by_symbol.get(name), || format!("symbol {name}"))
            }
            MessageRequest::FileContainingExtension(wanted) => {
                let fields = self.by_extension.get(&wanted.containing_type);
                let index = fields.and_then(|fields| fields.get(&wanted.extension_number));
                self.file(index, || {
                    format!("extension {} of {}", wanted.extension_number, wanted.containing_type)
                })
            }
            MessageRequest::AllExtensionNumbersOfType(name) => match self.by_extension.get(name) {
                None if !self.by_symbol.contains_key(name) => {
                    refusal(Code::NotFound, format!("message {name}: not found"))
                }
                fields => MessageResponse::AllExtensionNumbersResponse(ExtensionNumberResponse {
                    base_type_name: name.clone(),
                    extension_number: fields
                        .map(|fields| fields.keys().copied().collect())
                        .unwrap_or_default(),
                }),
            },
            MessageRequest::ListServices(_) => MessageResponse::ListServicesResponse(ListServiceResponse {
                service: self.services.iter().map(|name| ServiceResponse { name: name.clone() }).collect(),
            }),
        }
    }
}

fn join(scope: &str, name: &str) -> String {
    if scope.is_empty() { name.to_owned() } else { format!("{scope}.{name}") }
}

fn refusal(code: Code, error_message: String) -> MessageResponse {
    MessageResponse::ErrorResponse(ErrorResponse { error_code: i32::from(code), error_message })
}

/// Answers on the stream it is asked on, one answer a question, in order.
#[derive(Debug)]
pub(super) struct Reflection(pub(super) Arc<Descriptors>);

#[tonic::async_trait]
impl ServerReflection for Reflection {
    type ServerReflectionInfoStream =
        Pin<Box<dyn Stream<Item = Result<ServerReflectionResponse, Status>> + Send>>;

    async fn server_reflection_info(
        &self,
        request: Request<Streaming<ServerReflectionRequest>>,
    ) -> Result<Response<Self::ServerReflectionInfoStream>, Status> {
        let descriptors = Arc::clone(&self.0);
        let answers = request.into_inner().map(move |question| {
            let question = question?;
            let answer = match &question.message_request {
                Some(request) => descriptors.answer(request),
                None => refusal(Code::InvalidArgument, "message_request: set one of its fields".to_owned()),
            };
            Ok(ServerReflectionResponse {
                valid_host: question.host.clone(),
                original_request: Some(question),
                message_response: Some(answer),
            })
        });
        Ok(Response::new(Box::pin(answers)))
    }
}
