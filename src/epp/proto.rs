//! The messages of `envoy.service.ext_proc.v3` and `grpc.health.v1`, as far as they are used; field numbers are those of Envoy's
//! `external_processor.proto`, `config/core/v3/base.proto` and of `google/protobuf/struct.proto`. Other fields are skipped.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

/// Declares messages: each field with its kind and number.
macro_rules! messages {
    ($($(#[$meta:meta])* struct $Message:ident { $($field:ident: $type:ty = [$($kind:tt)+],)* })+) => {$(
        #[derive(Clone, PartialEq, Message)]
        $(#[$meta])*
        pub(super) struct $Message { $(#[prost($($kind)+)] pub(super) $field: $type,)* }
    )+};
}

/// Declares choices, of which a message has one.
macro_rules! choices {
    ($($(#[$meta:meta])* enum $Choice:ident {
        $($(#[$one_meta:meta])* $One:ident($type:ty) = [$($kind:tt)+],)+
    })+) => {$(
        #[derive(Clone, PartialEq, Oneof)]
        $(#[$meta])*
        pub(super) enum $Choice { $($(#[$one_meta])* #[prost($($kind)+)] $One($type),)+ }
    )+};
}

messages! {
    struct ProcessingRequest {
        seen: Option<Seen> = [oneof = "Seen", tags = "2, 3, 4, 5, 6, 7"],
        metadata_context: Option<Metadata> = [message, optional, tag = "8"],
        observability_mode: bool = [bool, tag = "10"],
        protocol_config: Option<ProtocolConfiguration> = [message, optional, tag = "11"],
    }

    struct ProtocolConfiguration {
        request_body_mode: i32 = [enumeration = "BodySendMode", tag = "1"],
        response_body_mode: i32 = [enumeration = "BodySendMode", tag = "2"],
    }

    struct HttpHeaders {
        headers: Option<HeaderMap> = [message, optional, tag = "1"],
        end_of_stream: bool = [bool, tag = "3"],
    }

    struct HttpBody {
        body: Bytes = [bytes = "bytes", tag = "1"],
        end_of_stream: bool = [bool, tag = "2"],
    }

    /// Their fields pass unread.
    struct HttpTrailers {}

    struct HeaderMap {
        headers: Vec<HeaderValue> = [message, repeated, tag = "1"],
    }

    struct HeaderValue {
        key: String = [string, tag = "1"],
        value: String = [string, tag = "2"],
        raw_value: Bytes = [bytes = "bytes", tag = "3"],
    }

    struct Metadata {
        filter_metadata: HashMap<String, Struct> = [map = "string, message", tag = "1"],
    }

    struct Struct {
        fields: HashMap<String, Value> = [map = "string, message", tag = "1"],
    }

    struct Value {
        kind: Option<Kind> = [oneof = "Kind", tags = "3, 5, 6"],
    }

    struct ListValue {
        values: Vec<Value> = [message, repeated, tag = "1"],
    }

    struct ProcessingResponse {
        order: Option<Order> = [oneof = "Order", tags = "1, 2, 3, 4, 5, 6, 7"],
        dynamic_metadata: Option<Struct> = [message, optional, tag = "8"],
    }

    /// `HeadersResponse` and `BodyResponse`, which have the same field.
    struct PartResponse {
        response: Option<CommonResponse> = [message, optional, tag = "1"],
    }

    /// Without changes.
    struct TrailersResponse {}

    struct CommonResponse {
        header_mutation: Option<HeaderMutation> = [message, optional, tag = "2"],
        body_mutation: Option<BodyMutation> = [message, optional, tag = "3"],
        clear_route_cache: bool = [bool, tag = "5"],
    }

    struct ImmediateResponse {
        status: Option<HttpStatus> = [message, optional, tag = "1"],
        headers: Option<HeaderMutation> = [message, optional, tag = "2"],
        body: Bytes = [bytes = "bytes", tag = "3"],
        details: String = [string, tag = "5"],
    }

    struct HttpStatus {
        code: i32 = [int32, tag = "1"],
    }

    struct HeaderMutation {
        set_headers: Vec<HeaderValueOption> = [message, repeated, tag = "1"],
        remove_headers: Vec<String> = [string, repeated, tag = "2"],
    }

    struct HeaderValueOption {
        header: Option<HeaderValue> = [message, optional, tag = "1"],
        append_action: i32 = [enumeration = "HeaderAppendAction", tag = "3"],
    }

    struct BodyMutation {
        mutation: Option<Mutation> = [oneof = "Mutation", tags = "1, 3"],
    }

    struct HealthCheckRequest {
        service: String = [string, tag = "1"],
    }

    struct HealthCheckResponse {
        status: i32 = [enumeration = "ServingStatus", tag = "1"],
    }
}

choices! {
    /// What Envoy has seen of a request or of its answer.
    enum Seen {
        RequestHeaders(HttpHeaders) = [message, tag = "2"],
        ResponseHeaders(HttpHeaders) = [message, tag = "3"],
        RequestBody(HttpBody) = [message, tag = "4"],
        ResponseBody(HttpBody) = [message, tag = "5"],
        RequestTrailers(HttpTrailers) = [message, tag = "6"],
        ResponseTrailers(HttpTrailers) = [message, tag = "7"],
    }

    enum Kind {
        Text(String) = [string, tag = "3"],
        Struct(Struct) = [message, tag = "5"],
        List(ListValue) = [message, tag = "6"],
    }

    /// What Envoy is to do with what it sent.
    enum Order {
        RequestHeaders(PartResponse) = [message, tag = "1"],
        ResponseHeaders(PartResponse) = [message, tag = "2"],
        RequestBody(PartResponse) = [message, tag = "3"],
        ResponseBody(PartResponse) = [message, tag = "4"],
        RequestTrailers(TrailersResponse) = [message, tag = "5"],
        ResponseTrailers(TrailersResponse) = [message, tag = "6"],
        Immediate(ImmediateResponse) = [message, tag = "7"],
    }

    enum Mutation {
        /// Of a buffered body.
        Body(Bytes) = [bytes = "bytes", tag = "1"],
        Streamed(HttpBody) = [message, tag = "3"],
    }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum HeaderAppendAction {
    AppendIfExistsOrAdd = 0,
    OverwriteIfExistsOrAdd = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
}
