//! Protobuf messages of a gRPC call, by prost.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Sends messages `E` and receives messages `D`.
#[derive(Debug)]
pub(super) struct Proto<E, D>(PhantomData<fn(E) -> D>);

impl<E, D> Default for Proto<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E: Message + 'static, D: Message + Default + 'static> Codec for Proto<E, D> {
    type Encode = E;
    type Decode = D;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<E: Message, D> Encoder for Proto<E, D> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, message: E, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(to).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<E, D: Message + Default> Decoder for Proto<E, D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        let decoded = D::decode(from).map_err(|error| Status::invalid_argument(error.to_string()));
        decoded.map(Some)
    }
}
