//! The codec of the service: prost's, but an update is measured before it is decoded.

use super::proto::CacheStateUpdate;
use super::wire::{self, WireError};
use prost::Message;
use prost::bytes::Buf;
use std::any::{Any, TypeId};
use std::fmt;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

/// Encodes `T`, decodes `U`.
pub struct BoundedCodec<T, U>(PhantomData<fn() -> (T, U)>);

/// Decodes `U`; see [`BoundedCodec`].
pub struct BoundedDecoder<U>(PhantomData<fn() -> U>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> BoundedCodec<T, U> {
        BoundedCodec(PhantomData)
    }
}

impl<T, U> fmt::Debug for BoundedCodec<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoundedCodec")
    }
}

impl<U> fmt::Debug for BoundedDecoder<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoundedDecoder")
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> BoundedDecoder<U> {
        BoundedDecoder(PhantomData)
    }
}

impl<U: Message + Default + 'static> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let bytes = buf.copy_to_bytes(buf.remaining());
        let message = if TypeId::of::<U>() == TypeId::of::<CacheStateUpdate>() {
            let update: Box<dyn Any> = Box::new(wire::decode_update(&bytes).map_err(status)?);
            update.downcast::<U>().map(|update| *update).map_err(|_| Status::internal("not of this type"))?
        } else {
            wire::decode(&bytes).map_err(status)?
        };
        Ok(Some(message))
    }
}

fn status(error: WireError) -> Status {
    match error {
        WireError::Malformed => Status::invalid_argument(error.to_string()),
        WireError::TooManyEntries | WireError::TooLarge => Status::resource_exhausted(error.to_string()),
    }
}
