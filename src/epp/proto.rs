//! The messages of `envoy.service.ext_proc.v3` and `grpc.health.v1`, as far as they are used; field numbers are those of Envoy's
//! `external_processor.proto`, `config/core/v3/base.proto` and of `google/protobuf/struct.proto`. Other fields are skipped.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessingRequest {
    #[prost(oneof = "Seen", tags = "2, 3, 4, 5, 6, 7")]
    pub(super) seen: Option<Seen>,
    #[prost(message, optional, tag = "8")]
    pub(super) metadata_context: Option<Metadata>,
    #[prost(bool, tag = "10")]
    pub(super) observability_mode: bool,
    #[prost(message, optional, tag = "11")]
    pub(super) protocol_config: Option<ProtocolConfiguration>,
}

/// What Envoy has seen of a request or of its answer.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Seen {
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    #[prost(message, tag = "7")]
    ResponseTrailers(HttpTrailers),
}

/// How Envoy sends bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum BodySendMode {
    Unsent = 0,
    Streamed = 1,
    Buffered = 2,
    BufferedPartial = 3,
    FullDuplexStreamed = 4,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct ProtocolConfiguration {
    #[prost(enumeration = "BodySendMode", tag = "1")]
    pub(super) request_body_mode: i32,
    #[prost(enumeration = "BodySendMode", tag = "2")]
    pub(super) response_body_mode: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpHeaders {
    #[prost(message, optional, tag = "1")]
    pub(super) headers: Option<HeaderMap>,
    #[prost(bool, tag = "3")]
    pub(super) end_of_stream: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpBody {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) body: Bytes,
    #[prost(bool, tag = "2")]
    pub(super) end_of_stream: bool,
}

/// Their fields pass unread.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct HttpTrailers {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    pub(super) headers: Vec<HeaderValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) raw_value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metadata {
    #[prost(map = "string, message", tag = "1")]
    pub(super) filter_metadata: HashMap<String, Struct>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Struct {
    #[prost(map = "string, message", tag = "1")]
    pub(super) fields: HashMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    #[prost(oneof = "Kind", tags = "3, 5, 6")]
    pub(super) kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Kind {
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(message, tag = "5")]
    Struct(Struct),
    #[prost(message, tag = "6")]
    List(ListValue),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListValue {
    #[prost(message, repeated, tag = "1")]
    pub(super) values: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessingResponse {
    #[prost(oneof = "Order", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub(super) order: Option<Order>,
    #[prost(message, optional, tag = "8")]
    pub(super) dynamic_metadata: Option<Struct>,
}

/// What Envoy is to do with what it sent.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Order {
    #[prost(message, tag = "1")]
    RequestHeaders(PartResponse),
    #[prost(message, tag = "2")]
    ResponseHeaders(PartResponse),
    #[prost(message, tag = "3")]
    RequestBody(PartResponse),
    #[prost(message, tag = "4")]
    ResponseBody(PartResponse),
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersResponse),
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersResponse),
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

/// `HeadersResponse` and `BodyResponse`, which have the same field.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PartResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) response: Option<CommonResponse>,
}

/// Without changes.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct TrailersResponse {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CommonResponse {
    #[prost(message, optional, tag = "2")]
    pub(super) header_mutation: Option<HeaderMutation>,
    #[prost(message, optional, tag = "3")]
    pub(super) body_mutation: Option<BodyMutation>,
    #[prost(bool, tag = "5")]
    pub(super) clear_route_cache: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImmediateResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<HttpStatus>,
    #[prost(message, optional, tag = "2")]
    pub(super) headers: Option<HeaderMutation>,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) body: Bytes,
    #[prost(string, tag = "5")]
    pub(super) details: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderMutation {
    #[prost(message, repeated, tag = "1")]
    pub(super) set_headers: Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "2")]
    pub(super) remove_headers: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<HeaderValue>,
    #[prost(enumeration = "HeaderAppendAction", tag = "3")]
    pub(super) append_action: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum HeaderAppendAction {
    AppendIfExistsOrAdd = 0,
    OverwriteIfExistsOrAdd = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BodyMutation {
    #[prost(oneof = "Mutation", tags = "1, 3")]
    pub(super) mutation: Option<Mutation>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Mutation {
    /// Of a buffered body.
    #[prost(bytes = "bytes", tag = "1")]
    Body(Bytes),
    #[prost(message, tag = "3")]
    Streamed(HttpBody),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub(super) status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
}
